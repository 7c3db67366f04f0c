"""The Debian package: the binary, a systemd unit, a user, a data folder that only this user can read.

Written without dpkg, so that it can be made anywhere: a .deb is an `ar` archive of two tar files. `scripts/test-dist` has dpkg
install it.
"""

from email.utils import format_datetime
from datetime import datetime, timezone
from hashlib import md5
from pathlib import Path

from .common import SUMMARY, VERSION, File, Manual, Target, epoch, packed, read, tar

MAINTAINER = "The Tenure developers <tenure@localhost>"

ENVIRONMENT = """\
# Settings of the broker, one VARIABLE=value per line. `tenure help serve` has them all. Then: systemctl restart tenure
#
# Where the data is. Other hosts can join the same cluster if they can reach it:
#TENURE_STORE=postgres://tenure:PASSWORD@db.example.com/tenure
# For clients and brokers on other hosts:
#TENURE_LISTEN=0.0.0.0:8080
#TENURE_ADVERTISE=http://10.0.0.5:8080
"""

# The service is not started: it would listen on a port that may be in use, with its data in a folder that the user has
# not chosen.
POSTINST = """\
#!/bin/sh
set -e
if [ "$1" = configure ]; then
    if ! getent passwd tenure >/dev/null; then
        useradd --system --user-group --home-dir /var/lib/tenure --no-create-home --shell /usr/sbin/nologin tenure
    fi
    if [ ! -e /var/lib/tenure ]; then
        install -d -m 0700 -o tenure -g tenure /var/lib/tenure
    fi
    # The broker accepts no call without one of these. systemd reads them for it; no other user can.
    if [ ! -e /etc/tenure/tokens ]; then
        (
            umask 077
            for scope in admin worker read; do
                echo "$scope $(od -An -tx1 -N32 /dev/urandom | tr -d ' \\n')"
            done >/etc/tenure/tokens.new
        )
        mv /etc/tenure/tokens.new /etc/tenure/tokens
    fi
    if [ -d /run/systemd/system ]; then
        systemctl daemon-reload
        if [ -n "$2" ]; then
            deb-systemd-invoke try-restart tenure.service || true
        fi
    fi
fi
"""

PRERM = """\
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    deb-systemd-invoke stop tenure.service || true
fi
"""

# The data stays, even with --purge, since it holds acknowledged jobs. The user account stays with it.
POSTRM = """\
#!/bin/sh
set -e
if [ "$1" = purge ]; then
    rm -f /etc/tenure/tokens /etc/tenure/tokens.new /etc/systemd/system/multi-user.target.wants/tenure.service
    if [ -d /etc/tenure ]; then
        rmdir --ignore-fail-on-non-empty /etc/tenure
    fi
fi
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload || true
fi
"""


def make(target: Target, binary: bytes, manual: Manual, out: Path) -> Path:
    files = [
        File("usr/bin/tenure", binary, 0o755),
        File("usr/lib/systemd/system/tenure.service", unit()),
        File("etc/tenure", None, 0o700),
        File("etc/tenure/tenure.env", ENVIRONMENT.encode(), 0o600),
        *manual.files("usr/share", zsh="zsh/vendor-completions", compressed=True),
        File("usr/share/doc/tenure/copyright", copyright_file()),
        File("usr/share/doc/tenure/changelog.gz", packed(changelog(), 9)),
        File("usr/share/doc/tenure/NEWS.gz", packed(read("CHANGELOG.md"), 9)),
    ]
    control = [
        File("control", description(target, files)),
        File("conffiles", b"/etc/tenure/tenure.env\n"),
        File("md5sums", sums(files)),
        File("postinst", POSTINST.encode(), 0o755),
        File("prerm", PRERM.encode(), 0o755),
        File("postrm", POSTRM.encode(), 0o755),
    ]
    path = out / f"tenure_{VERSION}_{target.debian}.deb"
    members = [
        ("debian-binary", b"2.0\n"),
        ("control.tar.gz", packed(tar(control, prefix="./"))),
        ("data.tar.gz", packed(tar(files, folders=True, prefix="./"))),
    ]
    path.write_bytes(b"!<arch>\n" + b"".join(member(name, content) for name, content in members))
    return path


def member(name: str, content: bytes) -> bytes:
    header = f"{name:<16}{epoch():<12}{0:<6}{0:<6}{0o100644:<8o}{len(content):<10}`\n"
    return header.encode() + content + b"\n" * (len(content) % 2)


def unit() -> bytes:
    """The unit of deploy/, for a binary in /usr/bin and a user that is always there.

    With `DynamicUser` only the broker could read its data; `sudo -u tenure tenure log verify` has to work.
    """
    text = read("deploy/tenure.service").decode()
    for old, new in (
        ("ExecStart=/usr/local/bin/tenure", "ExecStart=/usr/bin/tenure"),
        ("DynamicUser=yes", "User=tenure\nGroup=tenure"),
        ("Documentation=man:systemd.service(5)", "Documentation=man:tenure-serve(1)"),
    ):
        if text.count(old) != 1:
            raise SystemExit(f"deploy/tenure.service: {old!r} is not there once: mend scripts/packaging/debian.py")
        text = text.replace(old, new)
    return text.encode()


def description(target: Target, files: list[File]) -> bytes:
    depends = ["passwd"]
    if target.glibc:
        depends = [f"libc6 (>= {target.glibc[0]}.{target.glibc[1]})", "libgcc-s1", *depends]
    kilobytes = sum(len(file.content or b"") for file in files) // 1024
    return f"""\
Package: tenure
Version: {VERSION}
Architecture: {target.debian}
Maintainer: {MAINTAINER}
Installed-Size: {kilobytes}
Depends: {", ".join(depends)}
Recommends: ca-certificates
Section: net
Priority: optional
Description: {SUMMARY}
 Tenure keeps a durable job queue, elects leaders among your programs and
 keeps daemons running, on a directory, an S3, GCS or Azure bucket,
 PostgreSQL, MySQL, MariaDB or SQLite. It is one program, and
 needs no other service.
 .
 This package has the tenure command and a systemd unit for a broker, which
 is not started until you enable it.
""".encode()


def sums(files: list[File]) -> bytes:
    # Checks for damage, not for tampering; MD5 is what dpkg reads.
    lines = [f"{md5(file.content, usedforsecurity=False).hexdigest()}  {file.path}\n" for file in files if file.content is not None]
    return "".join(lines).encode()


def changelog() -> bytes:
    when = format_datetime(datetime.fromtimestamp(epoch(), timezone.utc))
    return f"""\
tenure ({VERSION}) unstable; urgency=medium

  * See NEWS.gz beside this file.

 -- {MAINTAINER}  {when}
""".encode()


def copyright_file() -> bytes:
    lines = read("LICENSE-MIT").decode().strip().splitlines()
    mit = "\n".join(f" {line}" if line.strip() else " ." for line in lines)
    return f"""\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: tenure

Files: *
Copyright: the Tenure developers
License: Apache-2.0 or MIT

License: Apache-2.0
 On Debian, the text is in /usr/share/common-licenses/Apache-2.0.

License: MIT
{mit}
""".encode()
