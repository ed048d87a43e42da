"""Starts more processes than any hook needs. Bounded, should it ever run elsewhere."""

import os
import time

MOST = 400
for _ in range(MOST):
    try:
        if os.fork() == 0:
            time.sleep(2)
            os._exit(0)
    except OSError:
        pass
time.sleep(0.5)
