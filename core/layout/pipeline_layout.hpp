#pragma once

#include <string_view>
#include <vector>

namespace reshard {

/// Layouts that would unroll to more letters and bars than this are refused.
inline constexpr int most_pipeline_stages = 100'000;

/// The content of one stage of a pipeline. Internal to this library.
struct PipelineStage {
  int decoder_layers = 0;
  int mtp_layers = 0;
  bool embedding = false;
  bool head = false;
};

/// Reads a pipeline layout: letters E (embedding), t (decoder layer), m (prediction depth), L
/// (loss, and so the output layer), stages separated by '|', 'x*n' and '(…)*n' for repeats; commas
/// and white space are ignored. "Ettt|(tt|)*29,m|L" has 32 stages. Any other text, and a number of
/// E or L other than one, is an Error of kind usage with the column.
std::vector<PipelineStage> parse_pipeline_layout(std::string_view text);

}  // namespace reshard
