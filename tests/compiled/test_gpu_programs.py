"""How programs for a GPU are read, and what follows from them; no plugin is needed."""

import jax
import jax.numpy as jnp
import optax
import pytest

from benchmarks.cost import counts
from benchmarks.gpu import programs
from jorge_optax import jorge
from tests.compiled.models import RULES

PROGRAM = """HloModule jit_step, is_scheduled=true

%fused_slice (p0: f32[8,4]) -> f32[2,4] {
  %p0 = f32[8,4]{1,0} parameter(0)
  ROOT %s = f32[2,4]{1,0} slice(%p0), slice={[0:2], [0:4]}, \
metadata={op_name="jit(step)/optimizer/slice"}
}

%fused_touch (p1: f32[8,4]) -> f32[8,4] {
  %p1 = f32[8,4]{1,0} parameter(0)
  %zero = s32[] constant(0)
  %first = f32[1,1]{1,0} dynamic-slice(%p1, %zero, %zero), dynamic_slice_sizes={1,1}
  ROOT %d = f32[8,4]{1,0} dynamic-update-slice(%p1, %first, %zero, %zero)
}

%keep (a0: (f32[8,4])) -> (f32[8,4]) {
  %a0 = (f32[8,4]{1,0}) parameter(0)
  %g0 = f32[8,4]{1,0} get-tuple-element(%a0), index=0
  %touch = f32[8,4]{1,0} fusion(%g0), kind=kLoop, calls=%fused_touch
  ROOT %t0 = (f32[8,4]{1,0}) tuple(%touch)
}

%renew (a1: (f32[8,4])) -> (f32[8,4]) {
  %a1 = (f32[8,4]{1,0}) parameter(0)
  %g1 = f32[8,4]{1,0} get-tuple-element(%a1), index=0
  %m1 = (f32[8,4]{1,0}, s8[4194304]{0}) custom-call(%g1, %g1), \
custom_call_target="__cublas$lt$matmul"
  %e1 = f32[8,4]{1,0} get-tuple-element(%m1), index=0
  %m2 = (f32[8,4]{1,0}, s8[4194304]{0}) custom-call(%e1, %g1), \
custom_call_target="__cublas$lt$matmul"
  %e2 = f32[8,4]{1,0} get-tuple-element(%m2), index=0
  ROOT %t1 = (f32[8,4]{1,0}) tuple(%e2)
}

ENTRY %main (x: f32[8,4], due: pred[], roots: f32[8,4]) -> f32[2,4] {
  %x = f32[8,4]{1,0} parameter(0)
  %due = pred[] parameter(1)
  %state_roots.1 = f32[8,4]{1,0} parameter(2)
  %conv = (f32[8,4]{1,0}, u8[16]{0}) custom-call(%x, %x), \
custom_call_target="__cudnn$convForward", \
metadata={op_name="jit(step)/jvp()/conv_general_dilated"}
  %copy.1 = f32[8,4]{0,1} copy(%x)
  %args = (f32[8,4]{1,0}) tuple(%state_roots.1)
  %cond = (f32[8,4]{1,0}) conditional(%due, %args, %args), \
true_computation=%renew, false_computation=%keep, \
metadata={op_name="jit(step)/optimizer/cond"}
  %g2 = f32[8,4]{1,0} get-tuple-element(%cond), index=0
  %m3 = (f32[8,4]{1,0}, s8[4194304]{0}) custom-call(%g2, %x), \
custom_call_target="__cublas$lt$matmul", \
metadata={op_name="jit(step)/optimizer/jorge/step/dot_general"}
  %e3 = f32[8,4]{1,0} get-tuple-element(%m3), index=0
  ROOT %out = f32[2,4]{1,0} fusion(%e3), kind=kLoop, calls=%fused_slice
}
"""
ARRAY, SLICE, NUMBER = 8 * 4 * 4, 2 * 4 * 4, 4


def test_a_program_is_counted():
    plain, refresh = programs.plain_and_refresh(PROGRAM)
    assert refresh is not None
    # The convolution, the copy, the conditional, a matmul, the slice.
    shared = {"convolutions": 1, "copies": 1, "conditionals": 1, "cusolver_calls": 0}
    assert plain.items() >= {**shared, "kernels": 2, "matmuls": 1}.items()
    assert refresh.items() >= {**shared, "kernels": 1, "matmuls": 3}.items()
    assert (plain["operations"], refresh["operations"]) == (6, 7)
    assert plain["precondition"] == 1
    assert (plain["copied_bytes"], plain["root_copied_bytes"]) == (ARRAY, 0)
    # Library calls read two arrays and write one, without their workspace; a copy reads
    # and writes; of the slice only the slice moves, of the touched array one number.
    entry = 2 * 3 * ARRAY + 2 * ARRAY + 2 * SLICE
    assert plain["traffic_bytes"] == entry + 2 * NUMBER
    assert refresh["traffic_bytes"] == entry + 2 * 3 * ARRAY


@pytest.mark.parametrize(
    ("old", "new", "name", "found"),
    [
        ("copy(%x)", "copy(%state_roots.1)", "root_copied_bytes", ARRAY),
        ("copy(%x)", "copy(%g2)", "root_copied_bytes", ARRAY),
        ("__cudnn$convForward", "cusolver_syevd_ffi", "cusolver_calls", 1),
        ("__cudnn$convForward", "something_new", "other_calls", 1),
    ],
)
def test_what_must_not_be_there_is_found(old, new, name, found):
    assert old in PROGRAM
    assert programs.plain_and_refresh(PROGRAM)[0][name] == 0
    changed = PROGRAM.replace(old, new)
    assert programs.plain_and_refresh(changed)[0][name] == found


@pytest.mark.parametrize(
    ("stride", "padding", "dilation", "groups"),
    [(1, 1, 1, 1), (2, 3, 1, 1), (1, 0, 2, 2)],
)
def test_operations_of_convolutions_are_exact(stride, padding, dilation, groups):
    x, w = (2, 7, 6, 6), (3, 3, 6 // groups, 4)

    def convolve(x, w):
        return jax.lax.conv_general_dilated(
            x,
            w,
            (stride, stride),
            [(padding, padding)] * 2,
            rhs_dilation=(dilation, dilation),
            feature_group_count=groups,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )

    structs = [jax.ShapeDtypeStruct(shape, "f4") for shape in (x, w)]
    # Of ones, each product that is not one of padding adds one.
    expected = 2 * int(convolve(jnp.ones(x), jnp.ones(w)).sum())
    assert counts.matmul_flops(convolve, *structs).plain == expected
    if groups == 1:
        # Forward, by the input and by the kernel: each as many.
        gradient = jax.grad(lambda *both: convolve(*both).sum(), argnums=(0, 1))
        found = counts.count_products(jax.make_jaxpr(gradient)(*structs).jaxpr).plain
        assert found == [expected] * 3


def test_least_bytes_of_an_update():
    params = {"w": jnp.zeros((6, 4))}
    size, roots = 4 * 24, 4 * (36 + 16 + 2)

    def least(optimizer):
        state = jax.eval_shape(optimizer.init, params)
        return counts.least_bytes(state, params)

    # The parameter and its momentum, read and written.
    expected = {"plain": 4 * size, "refresh": 4 * size}
    assert least(optax.sgd(0.1, momentum=0.9)) == expected
    # Two momenta; one count of four bytes; roots are written by a refresh only.
    both = 2 * (3 * size + 4)
    series = {"plain": both + roots, "refresh": both + 2 * roots}
    assert least(jorge(0.1)) == series
    # One momentum less.
    whitening = least(jorge(0.1, rule=RULES["whitening"]))
    assert whitening == {name: x - 2 * size for name, x in series.items()}
