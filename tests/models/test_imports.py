"""The native path needs neither torch nor transformers."""

import subprocess
import sys


def test_models_import_no_heavy_library():
    code = (
        "import sys, mini_vllm.models\n"
        "heavy = {'torch', 'transformers', 'fastapi'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_fallback_without_torch_says_how_to_get_it():
    code = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from mini_vllm.errors import MissingDependencyError\n"
        "from mini_vllm.models import load_fallback\n"
        "try:\n"
        "    load_fallback('folder')\n"
        "except MissingDependencyError as error:\n"
        "    assert \"pip install 'mini-vllm[torch]'\" in str(error), error\n"
        "else:\n"
        "    raise AssertionError('no error')"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
