#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/tables/shared_shape.hpp"
#include "core/base/text/shared_text.hpp"
#include "core/formats/huggingface/quant/made_quant.hpp"
#include "core/plan/views/gathered.hpp"

namespace reshard {

/// A tensor of the target that was laid out.
struct Plain {
  SharedText name;
  DType dtype = DType::bf16;
  SharedShape shape;
  std::shared_ptr<GatheredTensor> gathered;
};

/// Weights that share a second scale.
using JoinedWeights = std::vector<std::shared_ptr<GatheredTensor const>>;

bool is_weight(DType dtype);

/// Whether it holds experts of a layer.
bool is_stack(Plain const& one);

/// Refuses codes of a source (usage).
void refuse_quantised(std::string const& name, DType dtype);

/// Which tensors of a target are quantised.
class QuantisedModules {
 public:
  /// `recipe` outlives the choice. `layers`: of the decoder; 0 where their number is not known.
  /// `draft`: layers for multi-token prediction are quantised as others are.
  QuantisedModules(huggingface::QuantRecipe const& recipe, std::string model_type, Index layers,
                   bool draft)
      : recipe_(recipe), model_type_(std::move(model_type)), layers_(layers), draft_(draft) {}

  /// The module of a weight that is quantised; a stack is its own. The others that no engine is to
  /// read quantised are noted. Errors of kind usage: codes, scales of activations, experts that no
  /// engine reads in this form.
  std::optional<std::string> module_of(Plain const& one);

  /// The modules that were noted, as the library lists them.
  std::vector<std::string> left() const;

  /// Patterns of target.quant_ignore that match nothing.
  std::vector<std::string> idle_patterns(std::span<Plain const> tensors) const;

  /// The weights that are joined with others, by the name of each; none without second scales.
  std::map<std::string, std::shared_ptr<JoinedWeights const>, std::less<>> joined(
      std::span<Plain const> tensors) const;

 private:
  void refuse_codes(Plain const& one) const;
  [[noreturn]] void refuse_stack(Plain const& one) const;

  huggingface::QuantRecipe const& recipe_;
  std::string model_type_;
  Index layers_;
  bool draft_;
  bool output_stored_ = false;
  std::vector<std::string> left_;
};

}  // namespace reshard
