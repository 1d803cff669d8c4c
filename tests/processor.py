"""What only some processors can do."""

import pytest

from dragoman.decode.engines.products import int8_is_exact

NO_EXACT_INT8 = "this processor has no exact int8 product"  # x86 without VNNI; there the CPU engine uses float32
needs_exact_int8 = pytest.mark.skipif(not int8_is_exact(), reason=NO_EXACT_INT8)
