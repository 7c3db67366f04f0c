"""The container image, as an OCI layout in a tar file: made without a daemon, and without a distribution below it.

It holds the static binary, the certificates of public authorities, and an empty folder for the data that belongs to user 10001.
There is no shell in it: it is for brokers and the other verbs of `tenure`, not for `tenure run` or `tenure worker` with a program
of your own. For those, copy the binary into your image.
"""

import json
from datetime import datetime, timezone
from pathlib import Path

from .common import SUMMARY, VERSION, File, Manual, Target, epoch, licences, packed, sha256, tar

USER = 10001
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


def make(binaries: dict[Target, bytes], manual: Manual, certificates: bytes, out: Path) -> Path:
    blobs: dict[str, bytes] = {}

    def blob(content: bytes, media_type: str) -> dict:
        digest = sha256(content)
        blobs[digest] = content
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}

    created = datetime.fromtimestamp(epoch(), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    manifests = []
    for target, binary in sorted(binaries.items(), key=lambda item: item[0].oci):
        layers = [tar(files, folders=True) for files in (base(certificates), program(binary, manual))]
        config = {
            "created": created,
            "architecture": target.oci,
            "os": "linux",
            "config": {
                "User": str(USER),
                "ExposedPorts": {"8080/tcp": {}},
                "Env": ["PATH=/usr/local/bin", "TENURE_STORE=file:/var/lib/tenure"],
                "Entrypoint": ["/usr/local/bin/tenure"],
                "Cmd": ["serve"],
                "Volumes": {"/var/lib/tenure": {}},
                "WorkingDir": "/var/lib/tenure",
                "StopSignal": "SIGTERM",
                "Labels": labels(created),
            },
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{sha256(layer)}" for layer in layers]},
            "history": [{"created": created, "created_by": "scripts/dist"} for _ in layers],
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": blob(encoded(config), "application/vnd.oci.image.config.v1+json"),
            "layers": [blob(packed(layer), LAYER) for layer in layers],
        }
        entry = blob(encoded(manifest), "application/vnd.oci.image.manifest.v1+json")
        manifests.append(entry | {"platform": {"architecture": target.oci, "os": "linux"}})
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": manifests}
    # One name for the images of all processors; the name of a single image is beside it in the layout's own index.
    top = manifests[0] if len(manifests) == 1 else blob(encoded(index), index["mediaType"])
    named = top | {"annotations": {"org.opencontainers.image.ref.name": VERSION, "io.containerd.image.name": f"tenure:{VERSION}"}}
    files = [
        File("oci-layout", encoded({"imageLayoutVersion": "1.0.0"})),
        File("index.json", encoded(index | {"manifests": [named]})),
        *(File(f"blobs/sha256/{digest}", content) for digest, content in blobs.items()),
    ]
    path = out / f"tenure-{VERSION}-image.tar"
    path.write_bytes(tar(files, folders=True))
    return path


def base(certificates: bytes) -> list[File]:
    return [
        File("etc/passwd", f"root:x:0:0:root:/:/\ntenure:x:{USER}:{USER}::/var/lib/tenure:/\n".encode()),
        File("etc/group", f"root:x:0:\ntenure:x:{USER}:\n".encode()),
        File("etc/ssl/certs/ca-certificates.crt", certificates),
        File("tmp", None, 0o1777),
        File("var/lib/tenure", None, 0o700, USER),
    ]


def program(binary: bytes, manual: Manual) -> list[File]:
    return [
        File("usr/local/bin/tenure", binary, 0o755),
        *manual.files("usr/local/share"),
        *licences("usr/local/share/doc/tenure"),
    ]


def labels(created: str) -> dict[str, str]:
    fields = {"title": "tenure", "description": SUMMARY, "version": VERSION, "licenses": "MIT OR Apache-2.0", "created": created}
    return {f"org.opencontainers.image.{name}": value for name, value in fields.items()}


def encoded(document: dict) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
