"""`manage.py` of the project in which the contract with Django is tested."""

from __future__ import annotations

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
    sys.path.insert(0, str(Path(__file__).parent))
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)
