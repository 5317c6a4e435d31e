"""llama.cpp without compiling: the server inside the package xllamacpp, driven over HTTP from one thread a stream."""

import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version

import harness
import xllamacpp

STREAMS = 32


class LlamaServer:
    def __init__(self, settings):
        self.version = f"xllamacpp {version('xllamacpp')}"
        params = xllamacpp.CommonParams()
        params.model.path = settings["model"]
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings["threads"]
        params.n_parallel, params.n_ctx = STREAMS, STREAMS * 320
        params.port = 0  # any free one, on this machine only
        params.warmup = True
        self.server = xllamacpp.Server(params)
        self.url = self.server.listening_address + "/completion"
        self.pool = ThreadPoolExecutor(STREAMS)

    def generate(self, prompts, new_tokens, temperature, top_p):
        harness.refuse_sampling(temperature)
        return list(self.pool.map(lambda prompt: self._complete(prompt, new_tokens), prompts))

    def _complete(self, prompt, new_tokens):
        body = {"prompt": prompt, "n_predict": new_tokens, "ignore_eos": True, "temperature": 0, "cache_prompt": False}
        request = urllib.request.Request(
            self.url, json.dumps(body).encode(), {"Content-Type": "application/json"}, method="POST"
        )
        with urllib.request.urlopen(request) as response:
            return json.load(response)["tokens_predicted"]


harness.serve(LlamaServer)
