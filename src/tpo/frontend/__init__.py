"""ONNX in, clean Relax out: reads, checks, fixes shapes, simplifies, imports, canonicalises and lowers."""
