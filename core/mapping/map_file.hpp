#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/mapping/expression.hpp"

namespace reshard {

/// A named expression of a map, with its place ("qwen3_moe.toml:12") for messages.
struct NamedExpression {
  std::string name;
  Expression expression;
};

/// One way to store logical tensors under a name (docs/model-maps.md). Texts are as written; empty expressions and lists are absent.
struct MapEntry {
  std::string is;                     ///< layout expression
  std::vector<std::string> or_names;  ///< other names that a reader accepts
  Expression when;
  std::string in;                  ///< set of the layer axis: "layer.moe"
  std::vector<std::string> at;     ///< places of a tensor without layer number: "E", "L", "m", "decoder=L-1"
  Expression copy;                 ///< a further copy, written when this holds
  std::vector<std::string> whole;  ///< axes that the rules do not cut here
  bool optional = false;           ///< the model may lack it
  std::string view;                ///< layout expression of the shape it has in the file
  std::string cast;                ///< dtype it has in this format
  Expression apart_when;           ///< alternatives are stored tensors of their own with these endings
  std::vector<std::string> apart_as;
  std::string place;  ///< file:line
};

/// A stored name and the entries that may be meant by it, first choice first.
struct MapName {
  std::string name;
  std::vector<MapEntry> entries;
  std::string place;
};

/// One choice of a macro.
struct MacroChoice {
  std::string in;
  Expression when;
  std::string text;
};
struct MapMacro {
  std::string name;
  std::vector<MacroChoice> choices;
  std::string place;
};

/// An axis that a mesh axis cuts into equal parts.
struct AxisRule {
  std::string mesh;  ///< tp, etp, ep, pp
  std::string axis;
  bool cut_rows = false;  ///< uneven = "cut": with more ranks than indices, the stored rows are cut instead
  Expression pad;         ///< the size is rounded up to a multiple of this first
  Expression divides;     ///< with cut_rows: the mesh must divide this number all the same (attention heads)
  std::string place;
};

/// "layer.moe expert" = ["experts.gate: moe_inter hidden"]
struct MapTensor {
  std::string name;
  std::string axes;  ///< front axes and further axes: "layer.moe expert moe_inter hidden"
  std::string place;
};

/// A map file as written, parsed but not yet evaluated for a model.
struct MapFile {
  std::string name;                      ///< file name, for messages
  std::vector<std::string> model_types;  ///< [match] model_type
  Expression match_args;                 ///< [match] args: holds for the `args` of a Megatron checkpoint of this family
  std::vector<NamedExpression> options;
  std::vector<NamedExpression> places;
  std::vector<NamedExpression> let;
  std::vector<NamedExpression> axes;
  std::vector<NamedExpression> sets;     ///< name "layer.moe"
  std::vector<NamedExpression> present;  ///< tensor pattern: whether the model has it, where no family file says so
  std::vector<AxisRule> rules;
  std::vector<MapTensor> tensors;
  std::vector<MapMacro> macros;
  std::vector<MapName> stored;
  std::vector<std::string> drop;
  std::vector<NamedExpression> args;    ///< Megatron argument = expression over config.json
  std::vector<NamedExpression> config;  ///< config.json key = expression over `args`
};

/// Parses a map. All unknown keys and mistakes are Errors of kind usage with file and line.
MapFile parse_map_file(std::string_view text, std::string_view file_name);
MapFile load_map_file(std::filesystem::path const& path);

}  // namespace reshard
