"""The lake's rules, its maps, and that held-out maps never occur in training."""

from roll.envs.frozen_lake import FrozenLake, distances, is_held_out


def test_maps_are_drawn_by_their_seed_with_a_way_to_the_goal() -> None:
    observations = [FrozenLake().reset(seed) for seed in (3, 3, *range(100, 140))]
    assert observations[0] == observations[1]
    assert len(set(observations)) > 35
    for seed in range(200):
        lake = FrozenLake(size=5, p=0.6)
        lake.reset(seed)
        assert (0, 0) in distances(lake.grid)


def test_following_the_distances_wins_and_earns_one() -> None:
    from roll.envs.frozen_lake import MOVES

    lake = FrozenLake()
    lake.reset(11)
    far = distances(lake.grid)
    total = 0.0
    while True:
        row, column = lake.position
        name = min(MOVES, key=lambda n: far.get((row + MOVES[n][0], column + MOVES[n][1]), 99))
        step = lake.step(name)
        total += step.reward
        if step.terminated:
            break
    assert (total, step.metrics["success"], step.observation.count("V")) == (1.0, 1.0, 1)


def test_a_hole_ends_the_episode_and_a_wall_changes_nothing() -> None:
    lake = FrozenLake()
    lake.reset(0)
    lake.grid = ("_O__", "____", "____", "___G")
    step = lake.step("right")
    assert (step.reward, step.terminated, step.truncated, step.metrics["success"]) == (0.0, True, False, 0.0)
    assert step.observation == "_X__\n____\n____\n___G"
    lake = FrozenLake()
    first = lake.reset(0)
    assert lake.step("Up")[0] == first
    step = lake.step("jump")
    assert (step.observation, step.metrics["action_is_valid"]) == (first, 0.0)


def test_slipping_goes_to_the_sides_and_never_back() -> None:
    seen = set()
    for seed in range(60):
        lake = FrozenLake(size=5, is_slippery=True)
        lake.reset(seed)
        lake.grid, lake.position = ("_____",) * 4 + ("____G",), (2, 2)
        lake.step("Right")
        seen.add(lake.position)
    assert seen == {(2, 3), (1, 2), (3, 2)}


def test_training_and_held_out_maps_have_none_in_common() -> None:
    grids = {}
    for maps in ("training", "held_out"):
        grids[maps] = set()
        for seed in range(150):
            lake = FrozenLake(maps=maps)
            lake.reset(seed)
            grids[maps].add(lake.grid)
            assert is_held_out(lake.grid) == (maps == "held_out")
    assert grids["training"].isdisjoint(grids["held_out"])
