#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "core/base/dtype.hpp"
#include "core/base/text/wire.hpp"
#include "stages/verify/surveys/value_survey.hpp"

namespace reshard {

/// The properties of a surveyed tensor that the rules need.
struct SuspectTensor {
  std::string name;
  DType dtype = DType::u8;
  bool matrix = false;         ///< a slice has at least two axes that are longer than 1
  bool state = false;          ///< optimizer state, which may be zero
  bool second_moment = false;  ///< state that is not negative
  bool adapter = false;        ///< a matrix of a low-rank adapter, which may be zero
  bool scale = false;          ///< scales of quantised weights, which may not be zero
  bool tied = false;           ///< of the vocabulary: two such tensors may be equal
  std::string repeated;        ///< a word for content that the model repeats on purpose: tensors of
                               ///< one word may be equal in equal slices; "": none
  std::string fused;           ///< a word for a scale that loaders share between fused weights:
                      ///< "experts.gate and up"; scales of one word must be equal; "": none
  std::uint64_t first_slice = 0;
  std::vector<std::string> slices;  ///< what their names begin with: "layer.3.expert.5."; "" where
                                    ///< there is one
};

enum class SuspectKind {
  not_finite,
  negative,
  zero_scale,
  fused_scales,
  lacking_scale,
  zero,
  constant,
  subnormal,
  equal,
  replica,
  tied,
  master,
  padding
};

/// "not finite", …
std::string_view word_of(SuspectKind kind);
/// Sentences about the usual cause and the next step.
std::string_view cause_of(SuspectKind kind);

struct Suspect {
  SuspectKind kind{};
  std::string tensor;  ///< or part of one, "layer.3.attn.q"; the first, where several are equal
  std::string found;   ///< "2 NaN and 1 infinite of 4,096", or what it is equal to
  std::uint64_t count = 0;  ///< elements, or slices that are equal
};
constexpr auto wire_fields(Suspect const&) {
  return std::tuple(WireEnum{&Suspect::kind, SuspectKind::padding}, &Suspect::tensor,
                    &Suspect::found, &Suspect::count);
}

/// Findings that a sound model does not have, by kind, then in the order of the tensors. Expected,
/// and therefore not suspects: vectors that are constant or zero in most layers (norms, biases,
/// corrections of a router), zeros in optimizer state and adapters, equal tensors of the
/// vocabulary, repeated content, constant slices that are equal, subnormal numbers of 16-bit and
/// 8-bit floats other than BF16.
std::vector<Suspect> suspects_in(std::span<SuspectTensor const> tensors,
                                 std::span<SliceValues const> slices);

/// Quantiser scales that some experts of a layer lack and others have, by stored names
/// ("….experts.3.up_proj.input_scale"). Engines need all or none.
std::vector<Suspect> lacking_scales(std::span<std::string const> stored_names);

}  // namespace reshard
