"""The room is light until it is used."""

import subprocess
import sys


def test_importing_the_room_loads_no_library() -> None:
    code = (
        "import sys, mini_vllm.text;"
        "print(sorted({'tokenizers', 'jinja2', 'numpy', 'torch', 'transformers', 'sentencepiece'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
