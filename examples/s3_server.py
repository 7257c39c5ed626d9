"""An S3 server on the loopback, to try things with: moto, made to keep what S3 promises.

`python examples/s3_server.py 9000` is found with AWS_ENDPOINT_URL=http://127.0.0.1:9000 and any credentials.
"""

from __future__ import annotations

import sys
import threading
from typing import Any


def create_one_at_a_time() -> None:
    """Let one of the writers win that race to create an object, as in S3: moto looks first, stores then."""
    from moto.s3.responses import S3Response

    lock, put = threading.Lock(), S3Response.put_object

    def put_object(response: Any) -> Any:
        with lock:
            return put(response)

    S3Response.put_object = put_object


if __name__ == "__main__":
    from moto.server import main

    create_one_at_a_time()
    main(["-H", "127.0.0.1", "-p", sys.argv[1]])
