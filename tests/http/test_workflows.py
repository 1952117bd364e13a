"""The workflows of .github: what they use exists, their scripts are clean, and those of a release are run in order,
with stand-ins for what needs a registry or root."""

import fnmatch
import os
import re
import shutil
import subprocess

import pytest
import yaml

from harness import ROOT, expect, expect_equal

FOLDER = ROOT / ".github" / "workflows"
WORKFLOWS = sorted(path.name for path in FOLDER.glob("*.yml"))
# The inputs that each action is given, by its documentation.
INPUTS = {"actions/checkout@v4": {"fetch-depth"},
          "actions/upload-artifact@v4": {"name", "path"},
          "actions/download-artifact@v4": {"path", "pattern", "merge-multiple"}}
EXPRESSION = re.compile(r"\$\{\{ *(.*?) *\}\}")
VERSION = "9.8.7"
ARCHITECTURES = ("amd64", "arm64")


def jobs_of(workflow):
    return yaml.safe_load((FOLDER / workflow).read_text())["jobs"]


def steps_of(workflow):
    return [(name, job, step) for name, job in jobs_of(workflow).items() for step in job["steps"]]


def shell_of(job, step):
    """A container's steps are run by sh unless they say otherwise."""
    return step.get("shell", "sh" if "container" in job else "bash")


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_steps(workflow):
    jobs = jobs_of(workflow)
    for name, job, step in steps_of(workflow):
        expect(("run" in step) != ("uses" in step), f"{name}: {step}")
        needs = job.get("needs", [])
        expect({needs} <= set(jobs) if isinstance(needs, str) else set(needs) <= set(jobs), f"{name} needs {needs}")
        if "uses" in step:
            expect(set(step.get("with", {})) <= INPUTS[step["uses"]], f"{name}: {step}")
        matrix = job.get("strategy", {}).get("matrix", {})
        known = {f"matrix.{key}" for row in matrix.get("include", [matrix]) for key in row}
        used = {text for text in EXPRESSION.findall(str(step)) if text.startswith("matrix.")}
        expect(used <= known, f"{name} uses {used} of {known}")
        for program in re.findall(r"(?<![\w/.$-])(?:\./)?((?:deploy|tests|\.ci)/[\w./-]+)", step.get("run", "")):
            expect((ROOT / program).is_file(), f"{name}: {program} is not there")


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_scripts(workflow):
    for name, job, step in steps_of(workflow):
        if "run" not in step:
            continue
        shell, script = shell_of(job, step), EXPRESSION.sub("text", step["run"])
        commands = [[shell, "-n"]]
        if shutil.which("shellcheck"):
            commands.append(["shellcheck", "--shell", shell, "--exclude", "SC2050,SC2153,SC2154", "-"])
        for command in commands:
            done = subprocess.run(command, input=script, capture_output=True, text=True)
            expect(done.returncode == 0, f"{name}: {done.stdout}{done.stderr}")


def stand_in(folder, name, text):
    path = folder / name
    path.write_text(f"#!/bin/bash\nset -eu\n{text}\n")
    path.chmod(0o755)


def make_clone(path, release):
    """A checkout whose deploy/release writes a few files, named and summed as the real one does."""
    shutil.copytree(ROOT / "deploy", path / "deploy")
    stand_in(path / "deploy", "release", release)
    git = ["git", "-C", path, "-c", "user.name=tests", "-c", "user.email=tests@localhost"]
    for command in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message", "x"], ["tag", f"v{VERSION}"]):
        subprocess.run(git + command, check=True)


def test_release(directory):
    """All steps, for both architectures: the images and the manifests have one name, and what is attached has its sums."""
    programs, store, said = directory / "programs", directory / "store", directory / "said"
    programs.mkdir()
    for name in ("docker", "gh", "apt-get"):
        stand_in(programs, name, f'echo "{name} $*" >> "{said}"\nif [ "$1" = login ]; then cat > /dev/null; fi')
    environment = {"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(directory), "GITHUB_REF_NAME": f"v{VERSION}",
                   "GITHUB_REPOSITORY": "Owner/Bags", "GITHUB_REPOSITORY_OWNER": "Owner", "GITHUB_ACTOR": "somebody",
                   "GITHUB_SHA": "0" * 40, "GITHUB_SERVER_URL": "https://example.org"}
    values = {"github.repository": "Owner/Bags", "secrets.GITHUB_TOKEN": "secret", "vars.BAG_MAINTAINER": ""}

    def fill(text, architecture):
        return EXPRESSION.sub(lambda found: (values | {"matrix.architecture": architecture})[found[1]], text)

    def run_job(name, architecture=""):
        job = jobs_of("release.yml")[name]
        clone = directory / f"{name}-{architecture}"
        make_clone(clone, f'[ "$1" = {VERSION} ] && mkdir "$2" && cd "$2"\n'
                          f'echo "$BAG_MAINTAINER" > bagserve_{VERSION}_{architecture}.deb\n'
                          f'touch bagserve-{VERSION}.spdx.json bagserve-{VERSION}.tar.gz\n'
                          '(sha256sum ./* > ../sums && mv ../sums SHA256SUMS)\necho words > RELEASE_NOTES.md')
        for step in job["steps"]:
            wanted = {key: fill(value, architecture) for key, value in (step.get("with") or {}).items()
                      if isinstance(value, str)}
            if step.get("uses", "").startswith("actions/upload"):
                shutil.copytree(clone / wanted["path"], store / wanted["name"])
            elif step.get("uses", "").startswith("actions/download"):
                for folder in store.iterdir():
                    expect(fnmatch.fnmatch(folder.name, wanted["pattern"]), folder.name)
                    shutil.copytree(folder, clone / wanted["path"], dirs_exist_ok=True)
            elif "run" in step:
                extra = {key: fill(value, architecture) for key, value in (job.get("env", {}) | step.get("env", {})).items()}
                done = subprocess.run([shell_of(job, step), "-eu", "-c", fill(step["run"], architecture)], cwd=clone,
                                      env=environment | extra, capture_output=True, text=True)
                expect(done.returncode == 0, f"{name}, {step['name']}: {done.stdout}{done.stderr}")
        return clone

    for architecture in ARCHITECTURES:
        run_job("files", architecture)
    for architecture in ARCHITECTURES:
        run_job("image", architecture)
    clone = run_job("publish")

    lines = said.read_text().splitlines()
    pushed = [line.split()[-1] for line in lines if line.startswith("docker push")]
    image, feed = f"ghcr.io/owner/bags:{VERSION}", f"ghcr.io/owner/bags-feed:{VERSION}"
    expect_equal(pushed, [f"{name}-{architecture}" for architecture in ARCHITECTURES for name in (image, feed)])
    joined = [line for line in lines if "imagetools create" in line]
    expect_equal(joined, [f"docker buildx imagetools create -t {name} {name}-amd64 {name}-arm64" for name in (image, feed)])
    expect(not any("secret" in line for line in lines), "a secret is an argument")

    attached = next(line for line in lines if line.startswith("gh release create")).split()
    names = {name.removeprefix("release/") for name in attached if name.startswith("release/")}
    expect_equal(names, {f"bagserve-{VERSION}.tar.gz", f"bagserve-{VERSION}-manifests.tar.gz"}
                 | {f"{text}{architecture}{end}" for architecture in ARCHITECTURES for text, end in (
                     (f"bagserve_{VERSION}_", ".deb"), (f"bagserve-{VERSION}-", ".spdx.json"), ("SHA256SUMS-", ""))})
    for architecture in ARCHITECTURES:
        subprocess.run(["sha256sum", "--check", "--quiet", "--strict", f"SHA256SUMS-{architecture}"],
                       cwd=clone / "release", check=True)
        package = clone / "release" / f"bagserve_{VERSION}_{architecture}.deb"
        expect_equal(package.read_text(), "Owner <Owner@users.noreply.github.com>\n")
    named = subprocess.run(["tar", "-xzOf", f"release/bagserve-{VERSION}-manifests.tar.gz"], cwd=clone, check=True,
                           capture_output=True, text=True).stdout
    expect_equal(set(re.findall(r"image: (\S*bag\S*:\S*)", named)), {image, feed})
