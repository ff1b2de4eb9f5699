from roll.distributed.executor.environment import rank_environment, role_environment
from roll.distributed.executor.resource_manager import Node, Seat

FIRST, SECOND = Node(0, "10.0.0.1", ("4", "5", "6", "7")), Node(1, "10.0.0.2", ("0", "1", "2", "3"))


def test_cpu_workers_have_one_passive_thread_unless_the_user_says_otherwise():
    assert role_environment("critic", {}, has_gpus=False)["OMP_NUM_THREADS"] == "1"
    assert role_environment("critic", {}, has_gpus=False)["OMP_WAIT_POLICY"] == "PASSIVE"
    assert role_environment("critic", {"OMP_NUM_THREADS": "4"}, has_gpus=False)["OMP_NUM_THREADS"] == "4"
    assert "OMP_NUM_THREADS" not in role_environment("critic", {}, has_gpus=True)


def test_ranks_on_two_nodes_see_their_own_gpus_and_meet_at_the_first():
    seats = [Seat(0, 0, FIRST, (0,), ("4",)), Seat(1, 1, FIRST, (1,), ("5",)), Seat(2, 0, SECOND, (4,), ("0",))]
    assert rank_environment(seats, seats[1], is_distributed=True) == {
        "CUDA_VISIBLE_DEVICES": "5",
        "RANK": "1",
        "WORLD_SIZE": "3",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "10.0.0.1",
    }
    assert rank_environment(seats, seats[2], is_distributed=True)["LOCAL_WORLD_SIZE"] == "1"


def test_an_engine_of_several_gpus_sees_them_all_and_no_rank():
    seat = Seat(0, 0, SECOND, (4, 5), ("0", "1"))
    assert rank_environment([seat], seat, is_distributed=False) == {"CUDA_VISIBLE_DEVICES": "0,1"}
