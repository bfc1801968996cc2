from shoal.ray.directory import Directory, ReplicaAddress, State


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def address(id_, group="default", port=1):
    return ReplicaAddress(id_, group, "10.0.0.1", port, port + 1, port + 2)


def test_from_the_first_heartbeat_to_the_end():
    directory = Directory(Clock())
    assert directory.heartbeat(address("a"), {}) is True
    assert directory.serving() == []  # it has to join first
    directory.joined("a")
    assert directory.serving() == [address("a")]
    version = directory.version
    assert directory.heartbeat(address("a"), {"rate": 1.0}) is False
    assert directory.version == version
    directory.leave("a")
    assert directory.serving() == []
    assert directory.heartbeat(address("a"), {}) is False  # a late one
    assert directory.find("a").state is State.LEAVING
    directory.forget("a")
    assert len(directory) == 0


def test_a_replica_that_is_not_heard_of_is_lost_and_may_come_back():
    clock = Clock()
    directory = Directory(clock)
    directory.heartbeat(address("a"), {})
    directory.joined("a")
    clock.now = 4.0
    directory.heartbeat(address("b", port=11), {})
    assert directory.find_lost() == []
    clock.now = 5.5
    assert directory.find_lost() == ["a"]
    assert directory.find("a").state is State.LOST
    assert directory.find_lost() == []
    assert directory.heartbeat(address("a"), {}) is True


def test_a_lost_replica_is_forgotten_if_another_one_serves():
    clock = Clock()
    directory = Directory(clock)
    for number, id_ in enumerate("ab"):
        directory.heartbeat(address(id_, port=10 * number + 1), {})
        directory.joined(id_)
    clock.now = 30.0
    assert directory.find_lost() == ["a", "b"]
    directory.find_lost()
    # None is heard of: that may be the fault of the ingress, so both may have requests.
    assert directory.in_state(State.LOST) == [address("a"), address("b", port=11)]
    directory.heartbeat(address("a"), {})
    directory.joined("a")
    assert directory.find_lost() == []
    assert [entry.address.id for entry in directory] == ["a"]


def test_the_number_of_the_last_control_call():
    directory = Directory(Clock())
    directory.heartbeat(address("a"), {}, 3)
    assert directory.find("a").calls == 3
    directory.joined("a", 5)
    assert directory.find("a").calls == 5
    directory.leave("a")
    directory.joined("a", 6)  # too late
    assert directory.find("a").state is State.LEAVING


def test_a_replica_at_the_address_of_another_one_replaces_it():
    directory = Directory(Clock())
    directory.heartbeat(address("a"), {})
    directory.heartbeat(address("b"), {})
    assert [entry.address.id for entry in directory] == ["b"]


def test_other_ports_mean_another_server():
    directory = Directory(Clock())
    directory.heartbeat(address("a"), {})
    directory.joined("a")
    assert directory.heartbeat(address("a", port=7), {}) is True
    assert directory.serving() == []


def test_groups():
    directory = Directory(Clock())
    for port, (id_, group) in enumerate((("b", "x"), ("a", "y"), ("c", "x"))):
        directory.heartbeat(address(id_, group, port), {})
        directory.joined(id_)
    assert [one.id for one in directory.serving("x")] == ["b", "c"]
    assert [one.id for one in directory.serving()] == ["a", "b", "c"]


def test_many_replicas_call_less_often():
    directory = Directory(Clock())
    for number in range(1000):
        directory.heartbeat(address(str(number), port=number), {})
    assert directory.interval_secs == 5.0
