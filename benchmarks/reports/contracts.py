"""Makes the table of what Jorge composes with, from the tests in tests/contracts."""

import ast
import functools
import pathlib

FOLDER = pathlib.Path(__file__).parents[2] / "tests" / "contracts"
Table = tuple[list[str], list[list[str]]]

# Each row: with what, what holds, and the tests that say so.
ROWS = [
    (
        "`jax.jit`, donation",
        "one compilation for all steps; buffers are reused",
        "four_steps_with_unknown_extra_arguments_compile_once",
        "donated_buffers_are_reused",
    ),
    (
        "`jax.lax.scan`, `jax.vmap`, `jax.grad` through training",
        "equal a loop, each member alone, each hyperparameter alone; finite gradients",
        "scan_over_steps_equals_a_loop",
        "vmap_over_an_ensemble_equals_each_member_alone",
        "vmap_over_hyperparameters_equals_each_alone",
        "gradients_flow_through_training_alone_and_vmapped",
    ),
    (
        "`jax.eval_shape`",
        "`init` and `update` on abstract values allocate nothing",
        "init_on_abstract_parameters",
        "update_under_eval_shape",
    ),
    (
        "float16, bfloat16, float32, float64, mixed",
        "updates have the gradients' dtype; the state's dtypes never drift",
        "updates_have_the_dtype_of_gradients_and_state_never_drifts",
        "state_of_variants_never_drifts_in_low_precision",
        "gradients_may_have_another_dtype_than_parameters",
        "float64_gradients_do_not_widen_the_state_of_float32_parameters",
        "leaves_may_have_different_dtypes",
        "low_precision_is_float32_rounded_at_the_end",
    ),
    (
        "complex parameters",
        "by `optax.contrib.split_real_and_imaginary`",
        "complex_parameters_split_into_real_and_imaginary_parts",
    ),
    (
        "trees without matrices, empty trees",
        "take the baseline's steps",
        "trees_without_matrices",
    ),
    (
        "optax's own tests of a contributed optimizer",
        "pass, none skipped",
        "the_contract_of_optax_skips_nothing",
    ),
    (
        "`optax.chain`, with clipping and `optax.ema`",
        "as with any transformation",
        "in_a_chain_with_clipping_and_ema",
        "takes_extra_arguments",
        "graft_hands_extra_arguments_to_both",
    ),
    (
        "`optax.chain` of Jorge's own parts",
        "`jorge` equals its explicit form",
        "jorge_equals_its_explicit_form",
        "jorge_without_grafting_equals_its_explicit_form",
        "grafting_on_sgd_by_name_and_by_transformation_agree",
        "grafting_on_sgd_by_name_and_by_transformation_agree_without_tiles",
        "grafting_on_sgd_and_on_its_trace_agree",
        "leaves_without_roots_take_sgd_steps",
    ),
    (
        "`optax.masked`, `optax.partition`",
        "masked leaves pass through, frozen ones stay; the rest is as if alone",
        "masked_leaves_pass_through_and_the_rest_is_as_if_alone",
        "partition_with_frozen_weights",
    ),
    (
        "`optax.MultiSteps`",
        "equals steps with mean gradients; each mini-step pays for a due refresh",
        "multi_steps_equals_steps_with_mean_gradients",
    ),
    (
        "`optax.inject_hyperparams`",
        "without `static_args`; new values need no compilation",
        "inject_hyperparams_without_static_args",
        "injected_hyperparams_take_effect_without_compiling_anew",
        "injected_schedules_equal_plain_schedules",
    ),
    (
        "`optax.apply_if_finite`",
        "a bad gradient leaves no trace",
        "apply_if_finite_forgets_a_bad_gradient",
        "a_bad_gradient_at_a_refresh_leaves_its_roots_as_they_were",
    ),
    (
        "`optax.contrib.schedule_free`",
        "equals its recursion written out; keeps low precision",
        "schedule_free_equals_its_recursion_written_out",
        "schedule_free_in_low_precision_keeps_types",
    ),
    (
        "`optax.tree.map_params`",
        "reaches leaves of the parameters' shape; stacks count as no parameters",
        "map_params_of_the_identity_is_the_identity",
        "map_params_reaches_leaves_of_the_shape_of_parameters",
    ),
    (
        "`flax.nnx.Optimizer`",
        "equals plain training, with partition and frozen weights too",
        "nnx_optimizer_equals_plain_training",
        "nnx_optimizer_with_partition_and_frozen_weights",
        "nnx_shows_a_view_the_same_paths_at_init_and_update",
        "paths_of_nnx_are_alike_in_init_and_update",
        "diagnostics_read_an_nnx_optimizer",
    ),
    (
        "`flax.linen`, `TrainState`",
        "equals plain training",
        "linen_train_state_equals_plain_training",
    ),
    (
        "Equinox modules",
        "equal plain training, with `None` leaves",
        "equinox_modules_with_none_leaves_equal_plain_training",
        "paths_of_an_equinox_module",
        "describe_takes_nnx_flax_and_equinox_trees",
    ),
    (
        "checkpoints of orbax, flax's msgpack",
        "the step after restoring is equal bit for bit",
        "the_step_after_restoring_is_equal_bit_for_bit",
    ),
    (
        "a mesh of eight devices, automatic or explicit axes",
        "equals one device; no second compilation",
        "on_a_mesh_of_eight_devices",
        "on_a_mesh_with_explicit_axes",
    ),
    (
        "a state distributed over eight devices",
        "equals one device, by every rule; moves to other numbers of devices",
        "four_steps_compile_once",
        "every_rule_and_length_on_eight_devices",
        "sharded_parameters_and_two_axes",
        "rules_and_lengths_in_every_layout",
        "narrow_dtypes",
        "shares_and_idle_tiles",
        "a_state_moves_between_numbers_of_devices",
        "of_one_device_nothing_changes",
        "resharding_refuses_other_states",
        "bad_shardings_are_refused",
        "composes_with_grafting_and_injection",
    ),
    (
        "the same in loops of nnx and linen, and in orbax checkpoints",
        "one compilation; a checkpoint moves to other numbers of devices; Shampoo, too",
        "nnx_and_linen_loops_compile_once",
        "a_checkpoint_moves_between_numbers_of_devices",
        "distributed_shampoo_trains_as_shampoo_does",
    ),
]
# Negative controls of the tests above.
CONTROLS = {
    "the_contract_of_optax_can_fail",
    "a_drifting_state_would_be_noticed",
    "equality_with_the_explicit_form_sees_interval_and_mask",
}


@functools.cache
def tests() -> dict[str, str]:
    """Returns the tests of the suite, without "test_", and the file of each."""
    return {
        node.name.removeprefix("test_"): path.name
        for path in sorted(FOLDER.glob("test_*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def contracts() -> Table:
    """Rows: tools; a test that no longer exists is an error."""
    table = []
    for tool, holds, *names in ROWS:
        missing = [name for name in names if name not in tests()]
        if missing:
            raise ValueError(f"tests/contracts has no test {', '.join(missing)}.")
        files = sorted({tests()[name] for name in names})
        by = f"{len(names)} in {', '.join(f'`{file}`' for file in files)}"
        table.append([tool, holds, by])
    return ["with", "what holds", "tests"], table
