"""Reference solutions, one module a chapter. Chapters show them folded; no check imports them."""
