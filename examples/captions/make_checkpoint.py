"""Write a small BLIP with random weights, as transformers saves its checkpoints.

    pip install 'shoal[export]'
    python examples/captions/make_checkpoint.py FOLDER

For trying `shoal export blip` and everything after it without a download. Its captions are words
in some order, because it has learned nothing.
"""

from __future__ import annotations

import sys
from pathlib import Path

from shoal.testing.text_generators import blip_checkpoint

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "checkpoint")
blip_checkpoint(folder)
print(f"wrote '{folder}': now run shoal export blip {folder} captioning/captions")
