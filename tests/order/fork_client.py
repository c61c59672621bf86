"""`python fork_client.py SOCKET WORDS...`: an interpreter with these words, as a child of `fork_server.py`."""

import json
import os
import signal
import socket
import sys

signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the child's: this one sees it end
with socket.socket(socket.AF_UNIX) as server:
    server.connect(sys.argv[1])
    socket.send_fds(server, [json.dumps(sys.argv[2:]).encode()], [0, 1, 2])
    for number in range(2):
        os.close(number)  # whoever reads what it writes sees when the child has ended
    server.recv(1)
