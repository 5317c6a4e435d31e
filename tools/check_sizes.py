"""Refuse files that outgrew the house limits: 400 lines, kernels 500, tools 150. Prints the line budget per package.

usage: python tools/check_sizes.py
"""

import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUFFIXES = {".py", ".cpp", ".hpp", ".h", ".ts", ".tsx", ".html", ".sh"}


def limit(path: Path) -> int:
    """Most lines that a file may have."""
    if path.parts[0] == "csrc":
        return 500
    if path.parts[0] == "tools":
        return 150
    if path.suffix == ".html":
        return 200
    return 400


def room(path: Path) -> str:
    """The name under which a file's lines are counted."""
    if path.parts[:2] == ("src", "mini_vllm"):
        return "/".join(path.parts[1:3]) if len(path.parts) > 3 else "mini_vllm"
    return path.parts[0]


def main() -> int:
    """Check every tracked source file."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    lines: Counter[str] = Counter()
    too_long = []
    for path in map(Path, listed.stdout.split("\n")):
        if path.suffix not in SUFFIXES or not (ROOT / path).is_file():
            continue
        count = len((ROOT / path).read_text(encoding="utf-8").splitlines())
        lines[room(path)] += count
        if count > limit(path):
            too_long.append(f"{path}: {count} lines, at most {limit(path)}; split it by idea")
    for name, count in sorted(lines.items()):
        print(f"{count:7d}  {name}")
    print("\n".join(too_long))
    return 1 if too_long else 0


if __name__ == "__main__":
    sys.exit(main())
