"""Models as libraries that need nothing but the C library: for boards without Python, TVM or threads."""
