#pragma once

#include "tests/support/sample_checkpoints.hpp"

namespace reshard::test {

/// A root with `latest`: weights alone, as without ZeRO.
SampleCheckpoint make_deepspeed(std::filesystem::path const& folder);

/// ZeRO stage 2 of two ranks, with the state of one parameter.
SampleCheckpoint make_deepspeed_with_state(std::filesystem::path const& folder);

}  // namespace reshard::test
