"""The hallway: text to requests, plan, run, commit, and text again.

Doors: `core.EngineCore`, `client.EngineClient`, `llm.LLM`, `async_llm.AsyncLLM`, `assembly.load_engine`.
"""
