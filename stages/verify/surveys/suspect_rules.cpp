#include "stages/verify/surveys/suspect_rules.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "stages/verify/surveys/compare_stats.hpp"

namespace reshard {
namespace {

/// Vectors of at least this number of layers are compared.
constexpr std::size_t layers_to_compare = 4;
/// A flood is more than half of at least this number of elements.
constexpr std::uint64_t least_flood = 64;

bool has_wide_exponents(DType dtype) {
  return dtype == DType::bf16 || dtype == DType::f32 || dtype == DType::f64;
}

/// Codes of integers and powers of two (MXFP4's scales) have no zero.
bool has_zero(DType dtype) {
  return dtype == DType::f16 || dtype == DType::f8_e4m3 || dtype == DType::f8_e5m2 ||
         has_wide_exponents(dtype);
}

class Judge {
 public:
  Judge(std::span<SuspectTensor const> tensors, std::span<SliceValues const> slices)
      : tensors_(tensors), slices_(slices) {}

  std::vector<Suspect> run() {
    for (SuspectTensor const& tensor : tensors_) {
      look_for_values(tensor);
      if (tensor.state) continue;
      if (tensor.matrix)
        look_at_matrices(tensor);
      else
        look_at_vectors(tensor);
    }
    add_equal_ones();
    add_fused_scales();
    std::ranges::stable_sort(found_, {}, &Suspect::kind);
    return std::move(found_);
  }

 private:
  SliceValues const& values(SuspectTensor const& tensor, std::size_t slice) const {
    return slices_[tensor.first_slice + slice];
  }

  void add(SuspectKind kind, SuspectTensor const& tensor, std::size_t slice, std::string found,
           std::uint64_t count) {
    found_.push_back({kind, shown(tensor, slice), std::move(found), count});
  }

  void look_for_values(SuspectTensor const& tensor) {
    for (std::size_t s = 0; s < tensor.slices.size(); ++s) {
      SliceValues const& is = values(tensor, s);
      if (is.nan + is.infinite > 0)
        add(SuspectKind::not_finite, tensor, s,
            fmt::format("{} NaN and {} infinite of {}", is.nan, is.infinite, is.elements),
            is.nan + is.infinite);
      if (tensor.second_moment && is.negative > 0)
        add(SuspectKind::negative, tensor, s,
            fmt::format("{} of {} second moments are negative", is.negative, is.elements),
            is.negative);
      if (tensor.scale && has_zero(tensor.dtype) && is.zero > 0)
        add(SuspectKind::zero_scale, tensor, s,
            fmt::format("{} of {} are zero", is.zero, is.elements), is.zero);
      std::uint64_t const others = is.elements - is.zero;
      if (has_wide_exponents(tensor.dtype) && others >= least_flood && is.subnormal > others / 2)
        add(SuspectKind::subnormal, tensor, s,
            fmt::format("{} of {} are subnormal", is.subnormal, is.elements), is.subnormal);
    }
  }

  void look_at_matrices(SuspectTensor const& tensor) {
    for (std::size_t s = 0; s < tensor.slices.size(); ++s) {
      SliceValues const& is = values(tensor, s);
      if (is.elements == 0) continue;
      if (is.zero == is.elements) {
        if (!tensor.adapter && !tensor.scale)
          add(SuspectKind::zero, tensor, s, fmt::format("all {} are zero", is.elements),
              is.elements);
      } else if (is.uniform != 0) {
        if (!tensor.scale)
          add(SuspectKind::constant, tensor, s,
              fmt::format("all {} have the same value", is.elements), is.elements);
      } else if (!tensor.scale) {
        Content const content{is.crc64, is.elements, tensor.dtype};
        auto const group = group_of_.try_emplace(content, groups_.size()).first->second;
        if (group == groups_.size()) groups_.emplace_back();
        groups_[group].push_back({&tensor, s});
      }
    }
  }

  /// Norms begin as ones, biases as zeros. A vector with these values in few of many layers was
  /// lost.
  void look_at_vectors(SuspectTensor const& tensor) {
    if (tensor.scale || tensor.slices.size() < layers_to_compare) return;
    std::vector<std::size_t> zero;
    std::vector<std::size_t> constant;
    for (std::size_t s = 0; s < tensor.slices.size(); ++s) {
      SliceValues const& is = values(tensor, s);
      if (is.elements < 2) return;
      if (is.zero == is.elements)
        zero.push_back(s);
      else if (is.uniform != 0)
        constant.push_back(s);
    }
    if (zero.size() + constant.size() > tensor.slices.size() / 4) return;
    for (std::size_t const s : zero)
      add(SuspectKind::zero, tensor, s, "all zero, and most other layers are not",
          values(tensor, s).elements);
    for (std::size_t const s : constant)
      add(SuspectKind::constant, tensor, s, "all the same, and most other layers are not",
          values(tensor, s).elements);
  }

  using Holder = std::pair<SuspectTensor const*, std::size_t>;  ///< a tensor and its slice

  static bool are_repeated(std::vector<Holder> const& holders) {
    auto const word = [](Holder const& one) -> std::string const& { return one.first->repeated; };
    auto const slice = [](Holder const& one) -> std::string const& {
      return one.first->slices[one.second];
    };
    Holder const& first = holders.front();
    return !word(first).empty() && std::ranges::all_of(holders, [&](Holder const& one) {
      return word(one) == word(first) && slice(one) == slice(first);
    });
  }

  void add_equal_ones() {
    for (auto const& holders : groups_) {
      if (holders.size() < 2) continue;
      if (std::ranges::all_of(holders, [](auto const& one) { return one.first->tied; }) ||
          are_repeated(holders))
        continue;
      std::vector<std::string> others;
      for (std::size_t h = 1; h < holders.size() && h < 4; ++h)
        others.push_back(shown(*holders[h].first, holders[h].second));
      if (holders.size() > 4) others.push_back(fmt::format("{} more", holders.size() - 4));
      add(SuspectKind::equal, *holders[0].first, holders[0].second,
          fmt::format("the same bytes as {}", fmt::join(others, "; ")), holders.size());
    }
  }

  void add_fused_scales() {
    std::map<std::pair<std::string_view, std::string_view>, std::vector<Holder>> fused;
    for (SuspectTensor const& tensor : tensors_)
      for (std::size_t s = 0; s < tensor.slices.size() && !tensor.fused.empty(); ++s)
        fused[{tensor.fused, tensor.slices[s]}].emplace_back(&tensor, s);
    for (auto const& [what, holders] : fused) {
      auto const& [first, slice] = holders.front();
      for (auto const& [tensor, s] : holders)
        if (values(*tensor, s).crc64 != values(*first, slice).crc64) {
          add(SuspectKind::fused_scales, *tensor, s,
              fmt::format("{}, and {} has {}", number(*tensor, s), shown(*first, slice),
                          number(*first, slice)),
              values(*tensor, s).elements);
          break;
        }
    }
  }

  /// The first element of a slice.
  std::string number(SuspectTensor const& tensor, std::size_t slice) const {
    std::uint64_t const bits_of = values(tensor, slice).first;
    auto const bytes = std::as_bytes(std::span(&bits_of, 1));
    return value_text(tensor.dtype, bytes.first(static_cast<std::size_t>(bits(tensor.dtype) / 8)));
  }

  static std::string shown(SuspectTensor const& tensor, std::size_t slice) {
    return tensor.slices[slice] + tensor.name;
  }

  using Content = std::tuple<std::uint64_t, std::uint64_t, DType>;

  std::span<SuspectTensor const> tensors_;
  std::span<SliceValues const> slices_;
  std::map<Content, std::size_t> group_of_;
  std::vector<std::vector<Holder>> groups_;  ///< of one content
  std::vector<Suspect> found_;
};

}  // namespace

std::string_view word_of(SuspectKind kind) {
  switch (kind) {
    case SuspectKind::not_finite: return "not finite";
    case SuspectKind::negative: return "negative";
    case SuspectKind::zero_scale: return "zero scale";
    case SuspectKind::fused_scales: return "scales of fused weights differ";
    case SuspectKind::lacking_scale: return "scale lacks";
    case SuspectKind::zero: return "zero";
    case SuspectKind::constant: return "constant";
    case SuspectKind::subnormal: return "subnormal";
    case SuspectKind::equal: return "equal";
    case SuspectKind::replica: return "replicas differ";
    case SuspectKind::tied: return "tied weights differ";
    case SuspectKind::master: return "master weights differ";
    case SuspectKind::padding: return "padding";
  }
  return "";
}

std::string_view cause_of(SuspectKind kind) {
  switch (kind) {
    case SuspectKind::not_finite:
      return "Training diverged, or a cast overflowed. Take an earlier checkpoint.";
    case SuspectKind::negative:
      return "The state is damaged, or is that of another layout. Take an earlier checkpoint.";
    case SuspectKind::zero_scale:
      return "The quantiser saw no data for these blocks. Quantise again with calibration data.";
    case SuspectKind::fused_scales:
      return "Engines fuse these weights and use one of the scales for all of them, which changes "
             "the others' values. Quantise again with one scale for the weights that are fused.";
    case SuspectKind::lacking_scale:
      return "The quantiser saw no input for this weight, such as that of an expert that no token "
             "reached. Calibrate with more data, or give it the number of another expert.";
    case SuspectKind::zero:
      return "A weight was never loaded or saved, or memory was written before it was filled. "
             "Compare with the checkpoint that it was made from.";
    case SuspectKind::constant:
      return "A weight has the value it was allocated or initialised with. Compare with the "
             "checkpoint that it was made from.";
    case SuspectKind::subnormal:
      return "The bytes are of another dtype or byte order, or are damaged. Check how the file was "
             "written.";
    case SuspectKind::equal:
      return "A converter wrote one expert or layer several times, or the model was grown by "
             "copying and not trained since. Compare with the checkpoint that it was made from.";
    case SuspectKind::replica:
      return "Ranks that should hold the same weights drifted apart (a gradient that was not summed "
             "over all of them, another random seed), or a file is damaged. Look for the first "
             "checkpoint in which they differ.";
    case SuspectKind::tied:
      return "A copy was not updated with the weight that it is tied to, or the model is not tied. "
             "Compare tie_word_embeddings with how it was trained.";
    case SuspectKind::master:
      return "Weights were edited after the save, or the state is that of another layout or step. "
             "Resume from another checkpoint, or without its optimizer state.";
    case SuspectKind::padding:
      return "The vocabulary has more rows than the config says, and the last ones would be lost, "
             "or a file is damaged. Compare the number of rows with the tokenizer.";
  }
  return "";
}

std::vector<Suspect> lacking_scales(std::span<std::string const> stored_names) {
  constexpr std::string_view of_weight = ".weight_scale";
  constexpr std::string_view of_experts = ".experts.";
  std::set<std::string_view> const names(stored_names.begin(), stored_names.end());
  /// By the place of all experts: the bases of those that have the number, and of the others.
  std::map<std::string, std::pair<std::vector<std::string>, std::vector<std::string>>> groups;
  for (std::string_view const name : names) {
    std::size_t const experts = name.find(of_experts);
    if (!name.ends_with(of_weight) || experts == std::string_view::npos) continue;
    std::string const base(name.substr(0, name.size() - of_weight.size()));
    std::size_t const number = experts + of_experts.size();
    std::size_t const behind = base.find('.', number);
    if (behind == std::string::npos) continue;
    for (std::string_view const word : {".input_scale", ".input_global_scale"}) {
      std::string const stored = base + std::string(word);
      auto& [with, without] =
          groups[base.substr(0, number) + "*" + base.substr(behind) + std::string(word)];
      (names.contains(stored) ? with : without).push_back(stored);
    }
  }
  std::vector<Suspect> found;
  for (auto const& [place, both] : groups) {
    auto const& [with, without] = both;
    if (with.empty()) continue;
    for (std::string const& stored : without)
      found.push_back({SuspectKind::lacking_scale, stored,
                       fmt::format("is not there, and {} of {} have one", with.size(), place), 1});
  }
  return found;
}

std::vector<Suspect> suspects_in(std::span<SuspectTensor const> tensors,
                                 std::span<SliceValues const> slices) {
  return Judge(tensors, slices).run();
}

}  // namespace reshard
