"""Record the bits that ``fucina verify`` compares with: ``record_bits.py``, after a change of cases or of a specification."""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from fucina.verification.cases import cases, digest  # noqa: E402

if __name__ == "__main__":
    bits = {name: digest(compute()) for name, compute in cases()}
    path = ROOT / "fucina" / "verification" / "recorded.json"
    path.write_text(json.dumps(bits, indent=0) + "\n", encoding="utf-8")
    print(f"{path.relative_to(ROOT)}: {len(bits)} cases")
