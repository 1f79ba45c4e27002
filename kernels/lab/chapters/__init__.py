"""What single chapters compute beyond the common instruments: one module an analysis, named after it."""
