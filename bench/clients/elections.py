"""Candidates of ZooKeeper, and leaders of many elections at ZooKeeper and etcd.

    python3 elections.py zookeeper candidate ADDRESS ELECTION     prints a line when it leads, and leads until it is stopped
    python3 elections.py zookeeper|etcd hold SPEC                 leads `count` elections at `url`: a driver

ZooKeeper is used by kazoo. etcd is used by its own HTTP interface, since PyPI has no client for it: one lease, kept alive
every third of its time, and an election under it for each, as etcd's own library does.
"""

import base64
import http.client
import json
import signal
import sys
import threading
import time

TTL_SECONDS = 10


def tell(message):
    print(json.dumps(message), flush=True)
    sys.stdin.readline()


def hold(count, seconds, lead):
    """Leads, and tells the harness when all are led."""
    began = time.monotonic()
    for number in range(count):
        lead(f"election-{number}")
    all_led = time.monotonic() - began
    time.sleep(1)
    tell({"ready": True})
    time.sleep(seconds)
    tell({"jobs": 0, "seconds": seconds, "all_led_seconds": all_led})


def zookeeper(verb, *arguments):
    from kazoo.client import KazooClient  # pylint: disable=import-outside-toplevel

    address = arguments[0] if verb == "candidate" else json.loads(arguments[0])["url"]
    client = KazooClient(hosts=address, timeout=TTL_SECONDS)
    client.start()
    if verb == "candidate":
        over = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: over.set())

        def lead():
            print("leads", flush=True)
            over.wait()

        # In a thread, so that the signal's handler can run while this one waits.
        thread = threading.Thread(target=client.Election(f"/{arguments[1]}").run, args=(lead,), daemon=True)
        thread.start()
        while thread.is_alive() and not over.is_set():
            over.wait(0.1)
        thread.join(1)
    else:
        spec = json.loads(arguments[0])
        # The recipe that kazoo's election is made of, without a thread for each.
        hold(spec["count"], spec["seconds"], lambda name: client.Lock(f"/{name}").acquire())
    client.stop()


def etcd(verb, text):
    assert verb == "hold"
    spec = json.loads(text)
    connection = http.client.HTTPConnection(spec["url"])

    def call(path, body, using=connection):
        using.request("POST", path, json.dumps(body))
        answer = using.getresponse()
        content = answer.read()
        if answer.status != 200:
            sys.exit(f"error: {path}: {content.decode()}")
        return json.loads(content)

    lease = call("/v3/lease/grant", {"TTL": TTL_SECONDS})["ID"]

    def keep_alive():
        own = http.client.HTTPConnection(spec["url"])
        while True:
            time.sleep(TTL_SECONDS / 3)
            call("/v3/lease/keepalive", {"ID": lease}, own)

    threading.Thread(target=keep_alive, daemon=True).start()

    def lead(name):
        call("/v3/election/campaign", {"name": base64.b64encode(name.encode()).decode(), "lease": lease, "value": ""})

    hold(spec["count"], spec["seconds"], lead)


{"zookeeper": zookeeper, "etcd": etcd}[sys.argv[1]](*sys.argv[2:])
