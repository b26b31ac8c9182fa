"""Things for testing tpo and what extends it: model makers with seeded random weights."""
