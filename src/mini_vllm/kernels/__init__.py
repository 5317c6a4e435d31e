"""The op table and its implementations: native (csrc/, through a C interface) and torch (the reference)."""
