#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/mapping/adapter.hpp"
#include "core/mapping/quant_finder.hpp"

namespace reshard {

/// How a source names its adapters.
struct AdapterNames {
  std::string form;                 ///< of Model::adapter_forms()
  bool apart = false;               ///< SideOptions::adapters_apart
  std::vector<std::string> packed;  ///< ends of the names of parameters that have adapters:
                                    ///< adapter_config.json's target_parameters
};

/// The two matrices of an adapter, as one place of a source stores them.
struct AdapterPair {
  std::string module;  ///< its name beside the pair: "model.layers.0.mlp.up_proj"; that of a
                       ///< parameter which is adapted as such
  std::string a;
  std::string b;
  Index rank = 0;
};

/// Finds out which weights have low-rank adapters, of which ranks and in which layers, and makes a
/// model of these alone.
class AdapterFinder {
 public:
  /// All outlive the finder. `side` names the weights themselves; `linear` is linear_weights() of
  /// the core map.
  AdapterFinder(Model const& model, Side const& side, LinearWeights const& linear,
                AdapterNames names)
      : model_(model), side_(side), linear_(linear), names_(std::move(names)) {}

  /// The stored names of one place, and what that place has: its pairs. A matrix without the other,
  /// and matrices of one layer with several ranks, are Errors of kind source.
  std::vector<AdapterPair> look(std::span<StoredName const> names, FindTensor const& find,
                                std::string const& place_name);

  bool found() const { return !found_.empty(); }
  /// Makes the adapters that were found the only tensors of the model. Sides must be rebuilt then.
  void apply(Model& model) const;

 private:
  struct Names {
    std::string module;
    std::string a;
    std::string b;
    std::vector<std::string> further;  ///< axes that the matrices have inside of themselves
  };
  void look(StoredName const& name, std::string const& weight, FindTensor const& find,
            std::string const& place_name);
  bool note(Names const& names, std::span<TensorId const> tensors, StoredName const& name,
            FindTensor const& find, std::string const& place_name);
  std::size_t wrapped(std::string_view parameter) const;
  Index count(std::vector<std::string> const& axes) const;

  Model const& model_;
  Side const& side_;
  LinearWeights const& linear_;
  AdapterNames names_;
  std::vector<AdapterPair> pairs_;  ///< of the place that is looked at
  std::map<std::pair<TensorId, Index>, std::vector<bool>> found_;  ///< weight and rank: layers
  std::map<std::pair<TensorId, Index>, std::pair<Index, std::string>>
      seen_;  ///< weight and layer: rank, and the name that shows it
};

}  // namespace reshard
