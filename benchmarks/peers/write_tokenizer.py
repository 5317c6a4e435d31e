"""Writes a GGUF file's tokenizer as Hugging Face files into folders: write_tokenizer.py FILE FOLDER…"""

import sys
from pathlib import Path

from transformers import AutoTokenizer

source = Path(sys.argv[1])
tokenizer = AutoTokenizer.from_pretrained(str(source.parent), gguf_file=source.name)
for folder in sys.argv[2:]:
    tokenizer.save_pretrained(folder)
