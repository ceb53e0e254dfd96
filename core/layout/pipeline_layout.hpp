#pragma once

#include <string_view>
#include <vector>

namespace reshard {

/// Layouts that would unroll to more letters and bars than this are refused.
inline constexpr int most_pipeline_stages = 100'000;

/// What one stage of a pipeline holds. Internal to this library.
struct PipelineStage {
  int decoder_layers = 0;
  int mtp_layers = 0;
  bool embedding = false;
  bool head = false;
};

/// Reads a pipeline layout: letters E (embedding), t (decoder layer), m (prediction depth), L
/// (loss, and so the output layer), stages separated by '|', 'x*n' and '(…)*n' for repeats; commas
/// and white space mean nothing. "Ettt|(tt|)*29,m|L" has 32 stages. Anything else, and not exactly
/// one E and one L, is an Error of kind usage with the column.
std::vector<PipelineStage> parse_pipeline_layout(std::string_view text);

}  // namespace reshard
