"""Fills the temporary directory, file by file. Bounded, should it ever run elsewhere."""

import os
import tempfile

MOST = 160
with tempfile.TemporaryDirectory() as place:
    for number in range(MOST):
        with open(os.path.join(place, str(number)), "wb") as file:
            file.write(bytes(4 << 20))
