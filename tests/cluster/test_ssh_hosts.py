"""The line to a host, against real OpenSSH servers: words, files, noise, keys, a second factor, a cut line, forwards."""

import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from base.errors import ConnectionCut, RemoteError
from cluster import ssh
from cluster.ssh import OpenSsh
from cluster.ssh import run_there as run
from tests.cluster.sshd import Host, Laptop, factor, keygen, make_laptop, missing, server
from tests.minicluster.waiting import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(missing() is not None, reason="no sshd in namespaces here: root, openssh-server, iproute2"),
]
HOSTILE: Final = ["a b", "it's", '"q"', "new\nline", "$(id)", "`id`", "!x", "back\\slash", "", "*", "~", "ü", "-n", "%s"]


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Laptop, Host, Host]]:
    root = tmp_path_factory.mktemp("ssh")
    laptop = make_laptop(root / "laptop")
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(laptop.environ)
    try:
        with server(root / "a", laptop, 1) as plain, server(root / "b", laptop, 2, totp=True) as guarded:
            laptop.configure(plain, guarded)
            laptop.knows(plain, guarded)
            yield laptop, plain, guarded
            for host in (plain, guarded):
                with suppress(RemoteError):
                    OpenSsh(host.name).hang_up()
    finally:
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(laptop.environ["XDG_RUNTIME_DIR"])


@pytest.fixture
def line(machines: tuple[Laptop, Host, Host]) -> OpenSsh:
    laptop, host, _ = machines
    laptop.knows(*machines[1:])
    host.shell()
    return OpenSsh(host.name)


@pytest.mark.parametrize("shell", ["/bin/sh", "/bin/tcsh -f"])
def test_hostile_words_arrive_through_a_shell_that_talks(line: OpenSsh, machines: tuple[Laptop, Host, Host], shell: str) -> None:
    if shutil.which(shell.split()[0]) is None:
        pytest.skip("tcsh is not here")
    machines[1].shell(shell=shell, noise="echo Welcome; echo to the cluster >&2")
    result = run(line, ["printf", "%s|", *HOSTILE], limit_s=60)
    assert (result.stdout, result.stderr, result.returncode) == ("".join(f"{word}|" for word in HOSTILE), "", 0)


def test_input_and_exit_code_are_those_of_the_program_and_the_line_can_be_closed(line: OpenSsh, tmp_path: Path) -> None:
    content = os.urandom(1 << 20).hex().encode()
    (tmp_path / "in").write_bytes(content)
    with (tmp_path / "in").open("rb") as file:
        result = run(line, ["sh", "-c", "cat; echo bad >&2; exit 7"], limit_s=60, stdin=file)
    assert (result.stdout.encode(), result.stderr, result.returncode) == (content, "bad\n", 7)
    assert line.hang_up()
    assert not line.hang_up()


def test_files_go_and_come_through_a_shell_that_talks(line: OpenSsh, machines: tuple[Laptop, Host, Host], tmp_path: Path) -> None:
    machines[1].shell(noise="echo Welcome")
    tree, target, back = tmp_path / "a tree", tmp_path / "far" / "it's", tmp_path / "back"
    (tree / "x").mkdir(parents=True)
    content = os.urandom(3 << 20)
    (tree / "x" / "big file").write_bytes(content)
    (tree / "run").write_text("#!/bin/sh\n")
    (tree / "run").chmod(0o755)
    target.parent.mkdir()
    ssh.put(line, tree, str(target))
    assert (target / "x" / "big file").read_bytes() == content
    assert os.access(target / "run", os.X_OK)
    os.mkfifo(target / "pipe")
    ssh.get(line, str(target), {"x/big file": len(content), "run": 10, "pipe": 0}, back)
    assert not (back / "pipe").exists()
    assert (back / "x" / "big file").read_bytes() == content
    assert (back / "run").read_text() == "#!/bin/sh\n"


@pytest.mark.long  # 20 s until a line counts as cut, and 20 s until a host counts as silent
def test_a_cut_line_is_noticed_and_the_same_again_goes_on(line: OpenSsh, machines: tuple[Laptop, Host, Host]) -> None:
    run(line, ["true"], limit_s=60)
    began = threading.Event()
    cutter = threading.Thread(target=lambda: (began.wait(60), machines[1].cut()))
    cutter.start()
    try:
        with pytest.raises(ConnectionCut, match="was cut"):
            line.stream(["sh", "-c", "echo begun; exec sleep 600"], lambda _: began.set(), lambda _: None)
        with pytest.raises(ConnectionCut, match="same command again"):
            line.connect(ask=False)
    finally:
        cutter.join()
        machines[1].heal()
    assert run(line, ["echo", "back"], limit_s=60).stdout == "back\n"


def test_no_strange_key_is_accepted(line: OpenSsh, machines: tuple[Laptop, Host, Host]) -> None:
    laptop, host, other = machines
    own = host.known_line()
    texts = (
        "",
        own.replace(f"{host.address} ", f"@cert-authority {host.address} "),
        other.known_line().replace(other.address, host.address),
        f"@revoked {own}{own}",
    )
    for text in texts:
        line.hang_up()
        laptop.known_hosts.write_text(text)
        with pytest.raises(RemoteError, match=r"must work first(.|\n)*Host key verification failed"):
            line.connect(ask=False)


def test_a_second_factor_is_asked_for_once(machines: tuple[Laptop, Host, Host], monkeypatch: pytest.MonkeyPatch) -> None:
    laptop, _, guarded = machines
    laptop.knows(*machines[1:])
    line = OpenSsh(guarded.name)
    with pytest.raises(RemoteError, match="A second factor is asked for by"):
        line.connect(ask=False)
    with monkeypatch.context() as patch:
        for key, text in factor(laptop).items():
            patch.setenv(key, text)
        line.connect(ask=True)
    assert run(line, ["echo", "in"], limit_s=60).stdout == "in\n"
    assert run(OpenSsh(guarded.name), ["echo", "again"], limit_s=60).stdout == "again\n"


def test_a_host_certificate_is_accepted(machines: tuple[Laptop, Host, Host], tmp_path_factory: pytest.TempPathFactory) -> None:
    laptop, root = machines[0], tmp_path_factory.mktemp("certified")
    keygen(root / "authority")
    keygen(root / "stranger")
    with server(root / "host", laptop, 3, authority=root / "authority") as certified:
        laptop.configure(*machines[1:], certified)
        for signer, right in (("stranger", False), ("authority", True)):
            laptop.known_hosts.write_text(f"@cert-authority {certified.address} {(root / f'{signer}.pub').read_text()}")
            line = OpenSsh(certified.name)
            if right:
                assert run(line, ["echo", "in"], limit_s=60).stdout == "in\n"
                line.hang_up()
            else:
                with pytest.raises(RemoteError, match="No ED25519 host key is known"):
                    line.connect(ask=False)
    laptop.configure(*machines[1:])


def test_the_agent_has_the_key_whose_file_is_encrypted(line: OpenSsh, machines: tuple[Laptop, Host, Host], tmp_path: Path) -> None:
    laptop, plain = machines[0], machines[1]
    key = laptop.directory / "key"
    OpenSsh(plain.name).hang_up()
    shutil.copy(key, tmp_path / "unlocked")
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", "a passphrase", "-f", str(key)], check=True, stdin=subprocess.DEVNULL)
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(tmp_path / "agent")], stdout=subprocess.DEVNULL)
    try:
        with pytest.raises(RemoteError, match="second factor"):
            line.connect(ask=False)
        wait_until((tmp_path / "agent").is_socket, 30, "the agent listens")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
            subprocess.run(["ssh-add", "-q", str(tmp_path / "unlocked")], check=True, capture_output=True)
            assert run(line, ["echo", "in"], limit_s=60).stdout == "in\n"
    finally:
        agent.terminate()
        agent.wait()
        shutil.copy(tmp_path / "unlocked", key)
        line.hang_up()


def test_a_jump_host_of_the_configuration_is_used(machines: tuple[Laptop, Host, Host]) -> None:
    laptop, plain, guarded = machines
    laptop.knows(plain, guarded)
    laptop.configure(plain, guarded, more=f"Host behind\n  HostName {plain.address}\n  User root\n  ProxyJump {plain.name}\n")
    line = OpenSsh("behind")
    try:
        assert run(line, ["echo", "in"], limit_s=60).stdout == "in\n"
    finally:
        line.hang_up()
        laptop.configure(plain, guarded)
