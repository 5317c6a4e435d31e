"""OpenAI's words, as msgspec structs: one module per endpoint, and how a body becomes one of them.

Field names and shapes are the specification's. An explicit null means the same as an absent field, everywhere.
"""
