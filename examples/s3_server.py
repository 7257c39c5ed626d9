"""An S3 server on the loopback, to try things with: moto, made to keep what S3 promises.

`python examples/s3_server.py 9000` is found with AWS_ENDPOINT_URL=http://127.0.0.1:9000 and any credentials.
With 0 it takes any port that is free. It prints its address as soon as it answers.
"""

from __future__ import annotations

import sys
import threading
from typing import Any


def answer_one_at_a_time() -> None:
    """Let no request see another half done, as in S3.

    By itself moto looks in one thread whether an object is there, and stores it in another; what it has just
    stored it shows before its metadata are there, and what it replaces it closes while others read it.
    """
    from moto.s3.responses import S3Response

    lock = threading.Lock()

    def alone(answer: Any) -> Any:
        # Called once the request has been read, so no client makes others wait.
        def answer_alone(*request: Any) -> Any:
            with lock:
                return answer(*request)

        return answer_alone

    for name in ("_bucket_response", "_key_response"):
        setattr(S3Response, name, alone(getattr(S3Response, name)))


if __name__ == "__main__":
    from moto.server import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    answer_one_at_a_time()
    s3 = DomainDispatcherApplication(create_backend_app)
    server = make_server("127.0.0.1", int(sys.argv[1]), s3, threaded=True, request_handler=MotoRequestHandler)
    print(f"http://127.0.0.1:{server.port}", flush=True)
    server.serve_forever()
