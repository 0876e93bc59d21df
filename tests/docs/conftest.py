"""Put this folder on the path, so that the tests find their helpers."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
