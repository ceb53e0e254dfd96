#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/text/json.hpp"
#include "core/layout/pieces/join.hpp"
#include "core/mapping/maps/map_library.hpp"
#include "stages/plan/check/map_syntax.hpp"
#include "stages/plan/check/side_proof.hpp"

namespace reshard {

/// Which map is checked, and on which model: by its config.json, or by the args of a Megatron
/// checkpoint. With neither, what needs no model.
struct MapCheckRequest {
  std::string map;
  MapLibrary library;
  Json config;  ///< null for none
  Json args;    ///< null for none
};

/// A logical tensor of the model, and which patterns of each side hold it.
struct CheckedTensor {
  std::string name;
  std::vector<std::pair<std::string, Index>> axes;  ///< name and size: "layer" 61, "hidden/32" 224
  std::vector<DomainAxis> domain;                   ///< parallel to `axes`
  Index elements = 0;
  std::vector<std::size_t> family;  ///< places in MapCheck::family
  std::vector<std::size_t> core;
};

/// A pattern of Megatron's names, with what parallelism cuts: "tp inter".
struct CorePattern {
  NamePattern names;
  std::vector<std::string> cuts;
};

/// One form in which the model was checked.
struct FormCheck {
  std::string form;  ///< "mp_rank files, grouped experts, spec te"
  std::uint64_t stored = 0;
  std::string refused;    ///< why this form is not possible; "" when it is proved
  bool required = false;  ///< being refused is an error
};

/// The result of check-map.
struct MapCheck {
  std::string map;   ///< file name
  std::string core;  ///< file name of Megatron's map; "" where it was not checked
  MapWords words;
  bool on_model = false;  ///< a model was given; all that follows needs one
  std::vector<CheckedTensor> tensors;
  std::vector<NamePattern> family;
  std::vector<CorePattern> megatron;
  std::vector<NamePattern> torch_dist;
  std::vector<FormCheck> forms;
  std::vector<std::string> no_axes;  ///< axes that the model does not have, with their definitions
  std::vector<std::string>
      unused;  ///< stored names of the family that this model has none of, with their places
  std::vector<std::string> absent;  ///< facts that expressions ask for and that are not stated
  std::vector<std::pair<std::string, Json>> args;    ///< what [args] makes
  std::vector<std::pair<std::string, Json>> config;  ///< what [config] makes of them
  std::vector<std::string> drop;
  std::vector<std::string> keep;
  std::string no_megatron;  ///< why the model has no form in Megatron; "" where it has one
  std::vector<std::string> notes;
  std::vector<std::string> errors;  ///< best first; empty when the map is proved
};

/// Proves a map on a model, as far as sizes and names can prove it. A map that cannot be read,
/// sizes that do not divide, are Errors of kind usage; what the proof finds missing is in `errors`.
MapCheck check_map(MapCheckRequest const& request);

}  // namespace reshard
