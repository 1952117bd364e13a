"""The clients as packages: wheel and sdist in environments of their own, the jar by Maven, the Go module under another path, and
the C header in C++. Nothing is fetched from a network."""

import os
import re
import shutil
import subprocess
import tarfile
import zipfile

import pytest

from clients import C_HEADER, address
from harness import ROOT, TIMEOUT_S, Server, expect, expect_equal

CLIENTS = ROOT / "proto" / "clients"
MAVEN_REPOSITORY = "/usr/share/maven-repo"
PLUGINS = ("resources", "compiler", "surefire", "jar")
VERSION = re.search(r"project\(bagserve VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text()).group(1)


def run(*command, **options):
    """What a command prints."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False,
                          timeout=10 * TIMEOUT_S, **options)
    expect_equal(done.returncode, 0, f"{command}: {done.stdout}{done.stderr}")
    return done.stdout


def test_versions():
    """All packages have the version of the program."""
    python = re.search(r'^version = "(.*)"', (CLIENTS / "python" / "pyproject.toml").read_text(), re.MULTILINE)
    java = re.search(r"^  <version>(.*)</version>", (CLIENTS / "java" / "pom.xml").read_text(), re.MULTILINE)
    expect_equal((python.group(1), java.group(1)), (VERSION, VERSION))


# ---- Python -----------------------------------------------------------------------------------
BUILD = "import sys; from setuptools import build_meta; print(getattr(build_meta, 'build_' + sys.argv[1])(sys.argv[2]))"
ASK = """
import importlib.metadata, sys
import bagserve_client, bagserve_export, bagserve_trainers
with bagserve_client.Client(sys.argv[1]) as client:
    print(client.packed("example", [[0, 2], [3, 4]], reduction="max").tolist())
print(importlib.metadata.version("bagserve-client"), bagserve_client.__file__.startswith(sys.prefix))
"""
MODULES = {path.name for path in (CLIENTS / "python").glob("bagserve_*.py")}


@pytest.fixture(scope="module", name="distributions")
def build_distributions(shared_directory):
    """{kind: file} of the wheel and the sdist, built of a copy of the folder, as pip has them built."""
    pytest.importorskip("setuptools", reason="python3-setuptools is not installed")
    pytest.importorskip("wheel", reason="python3-wheel is not installed")
    source, built = shared_directory / "python", {}
    shutil.copytree(CLIENTS / "python", source, ignore=shutil.ignore_patterns("__pycache__"))
    for kind in ("wheel", "sdist"):
        name = run("/usr/bin/python3", "-c", BUILD, kind, shared_directory, cwd=source).splitlines()[-1]
        built[kind] = shared_directory / name
    return built


def test_contents(distributions):
    """The modules, the command and the license's name, and nothing of the tests."""
    with zipfile.ZipFile(distributions["wheel"]) as wheel:
        names = set(wheel.namelist())
        metadata = wheel.read(f"bagserve_client-{VERSION}.dist-info/METADATA").decode()
        commands = wheel.read(f"bagserve_client-{VERSION}.dist-info/entry_points.txt").decode()
    expect_equal({name for name in names if "dist-info" not in name}, MODULES)
    expect("License: Apache-2.0" in metadata and "Requires-Dist: numpy" in metadata, metadata)
    expect("bagserve-export = bagserve_export:main" in commands, commands)
    with tarfile.open(distributions["sdist"]) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    expect(inside >= MODULES | {"pyproject.toml"}, inside)


@pytest.mark.parametrize("kind", ("wheel", "sdist"))
def test_installed(distributions, directory, kind):
    """In an environment that has the system's NumPy, and nothing of this repository."""
    environment = directory / "venv"
    run("/usr/bin/python3", "-m", "venv", "--system-site-packages", environment)
    alone = {"PATH": "/usr/bin:/bin", "HOME": str(directory), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    run(environment / "bin" / "pip", "install", "--no-index", "--no-build-isolation", "--no-deps", distributions[kind], env=alone,
        cwd=directory)
    with Server("--demo") as server:
        said = run(environment / "bin" / "python", "-c", ASK, address(server), env=alone, cwd=directory)
    expect_equal(said.splitlines(), ["[[-0.20000000298023224, -0.6000000238418579], [0.800000011920929, 1.5]]",
                                     f"{VERSION} True"])
    said = run(environment / "bin" / "bagserve-export", "--help", env=alone, cwd=directory)
    expect("bagserve-export" in said and "--table" in said, said)


# ---- Java -------------------------------------------------------------------------------------
PROGRAM = """
import bagserve.BagserveClient;

public final class Program {
    public static void main(String[] arguments) throws Exception {
        try (var client = new BagserveClient(arguments[0])) {
            System.out.println(java.util.Arrays.toString(client.packed("example", new long[] {0, 2}, 1, null).row(0)));
        }
    }
}
"""


def plugin_versions():
    """The versions of Maven's plugins that Debian installed; None where one is missing."""
    folder = os.path.join(MAVEN_REPOSITORY, "org/apache/maven/plugins")
    versions = {}
    for plugin in PLUGINS:
        there = os.path.join(folder, f"maven-{plugin}-plugin")
        found = [name for name in os.listdir(there) if name[0].isdigit()] if os.path.isdir(there) else []
        if not found:
            return None
        versions[plugin] = max(found)
    return versions


def test_jar(directory):
    """pom.xml, built from Debian's repository of plugins, in place of a network's."""
    versions = plugin_versions()
    if not versions or not shutil.which("mvn"):
        pytest.skip("maven and its plugins are not installed")
    shutil.copytree(CLIENTS / "java", directory / "java")
    (directory / "settings.xml").write_text(
        "<settings><mirrors><mirror><id>debian</id><mirrorOf>*</mirrorOf>"
        f"<url>file://{MAVEN_REPOSITORY}</url></mirror></mirrors></settings>")
    run("mvn", "--batch-mode", "-s", directory / "settings.xml", f"-Dmaven.repo.local={directory}/repository",
        *[f"-D{plugin}.version={version}" for plugin, version in versions.items()], "package", cwd=directory / "java")
    jar = directory / "java" / "target" / f"bagserve-client-{VERSION}.jar"
    with zipfile.ZipFile(jar) as contents:
        names = contents.namelist()
    expect("bagserve/BagserveClient.class" in names and not [name for name in names if name.endswith(".java")], names)
    (directory / "Program.java").write_text(PROGRAM)
    with Server("--demo") as server:
        said = run("java", "-cp", jar, directory / "Program.java", f"http://{address(server)}")
    expect_equal(said, "[-2.1, -2.4]\n")


# ---- Go ---------------------------------------------------------------------------------------
MAIN = """package main

import (
	"context"
	"fmt"
	"os"

	"PATH"
)

func main() {
	client, err := bagserve.Open(os.Args[1], bagserve.Options{})
	if err == nil {
		var rows bagserve.Rows
		rows, err = client.Packed(context.Background(), "example", []int64{0, 2}, 1, nil)
		fmt.Println(rows.Values)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}
"""


@pytest.mark.skipif(not shutil.which("go"), reason="golang-go is not installed")
@pytest.mark.parametrize("path", ("bagserve", "example.com/owner/bagserve/proto/clients/go"))
def test_go_module(directory, path):
    """The line in go.mod is the only place of the module's path: with another one it is imported by that."""
    alone = os.environ | {"GOFLAGS": "-mod=mod", "GOPROXY": "off", "GOTOOLCHAIN": "local"}
    shutil.copytree(CLIENTS / "go", directory / "client")
    run("go", "mod", "edit", "-module", path, cwd=directory / "client", env=alone)
    (directory / "program").mkdir()
    (directory / "program" / "main.go").write_text(MAIN.replace("PATH", path))
    run("go", "mod", "init", "program", cwd=directory / "program", env=alone)
    run("go", "mod", "edit", "-require", f"{path}@v0.0.0", "-replace", f"{path}=../client", cwd=directory / "program", env=alone)
    with Server("--demo") as server:
        said = run("go", "run", ".", address(server), cwd=directory / "program", env=alone)
    expect_equal(said, "[-2.1 -2.4]\n")


# ---- C++ --------------------------------------------------------------------------------------
CPP = r"""
#include <cstdio>
#include <vector>

#include "bagserve_admin.h"

int main(int, char *argv[])
{
    bagserve_client *client = bagserve_open(argv[1], 20000);
    std::vector<int64_t> indices{0, 2}, values{0, 2, 4, 1, 7}, lengths{2, 0, 1, 1, 1, 0};
    bagserve_rows rows;
    bagserve_output outputs[3];
    size_t count = 0;
    const char *const names[] = {"example"};
    if (bagserve_packed(client, "example", indices.data(), 1, 2, nullptr, &rows) != BAGSERVE_OK)
        return std::printf("%s\n", bagserve_error(client)), 1;
    std::printf("%g %g\n", rows.values[0], rows.values[1]);
    if (bagserve_kjt(client, "ranker", values.data(), 5, lengths.data(), 6, nullptr, outputs, 3, &count) != BAGSERVE_OK)
        return std::printf("%s\n", bagserve_error(client)), 1;
    std::printf("%zu %s\n", count, outputs[2].name);
    std::printf("%d %d\n", bagserve_load(client, names, 1), bagserve_set_row_format(client, "int8"));
    bagserve_close(client);
}
"""


@pytest.mark.parametrize("standard", ("c++11", "c++20"))
@pytest.mark.parametrize("compiler", ("g++", "clang++"))
def test_cpp(directory, compiler, standard):
    if not shutil.which(compiler):
        pytest.skip(f"{compiler} is not installed")
    (directory / "program.cpp").write_text(CPP)
    said = run(compiler, f"-std={standard}", "-Wall", "-Wextra", "-Werror", "-pedantic", "-Wno-unused-value", f"-I{C_HEADER}",
               "program.cpp", "-o", "program", "-lcurl", cwd=directory)
    expect_equal(said, "")
    with Server("--demo") as server:
        first, second, third = run(directory / "program", f"http://{address(server)}").splitlines()
    expect_equal((first, second), ("-2.1 -2.4", "3 ad"))
    expect(third.split()[1] == "0", third)
