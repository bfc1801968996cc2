"""Print the bill of materials of the image in CycloneDX's JSON: Python packages and Debian's.

    /opt/build/bin/python sbom.py /opt/shoal/bin/python > sbom.cdx.json

cyclonedx-py, which runs in the interpreter that runs this file, lists the packages of the given
interpreter; dpkg lists those of the system.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from typing import Any
from urllib.parse import quote

_FIELDS = "${db:Status-Status}\t${Package}\t${Version}\t${Architecture}\t${source:Package}\n"


def debian_components(listing: str, distribution: str) -> list[dict[str, Any]]:
    """The components for the output of dpkg-query."""
    found = []
    for line in listing.splitlines():
        status, name, version, architecture, source = line.split("\t")
        if status != "installed":
            continue
        # The identity of a package: https://github.com/package-url/purl-spec
        identity = f"{quote(name, safe='')}@{quote(version, safe='')}"
        package_url = f"pkg:deb/{distribution}/{identity}?arch={architecture}"
        found.append(
            {
                "type": "library",
                "bom-ref": package_url,
                "name": name,
                "version": version,
                "purl": package_url,
                "properties": [{"name": "dpkg:source", "value": source}],
            }
        )
    return found


def main() -> None:
    """Print the document. It is checked against CycloneDX's schema; a mistake is an error."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    version = SchemaVersion.V1_6
    command = [sys.executable, "-m", "cyclonedx_py", "environment", "--output-format=JSON"]
    command += [f"--spec-version={version.to_version()}", "--output-reproducible"]
    packages = subprocess.run([*command, sys.argv[1]], check=True, stdout=subprocess.PIPE)
    document = json.loads(packages.stdout)
    listing = subprocess.run(
        ["dpkg-query", "--show", f"--showformat={_FIELDS}"],  # noqa: S607  # the system's
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    distribution = platform.freedesktop_os_release()["ID"]
    document["components"] += debian_components(listing.stdout, distribution)
    text = json.dumps(document, indent=1)
    mistake = JsonStrictValidator(version).validate_str(text)
    if mistake:
        sys.exit(f"error: the bill of materials is invalid: {mistake}")
    print(text)


if __name__ == "__main__":
    main()
