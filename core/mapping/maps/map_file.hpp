#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/layout/part_layout.hpp"
#include "core/mapping/expressions/expression.hpp"

namespace reshard {

/// A named expression of a map, with its place ("qwen3_moe.toml:12") for messages.
struct NamedExpression {
  std::string name;
  Expression expression;
};

/// One way to store logical tensors under a name (docs/model-maps.md). Texts are as written; empty
/// expressions and lists are absent.
struct MapEntry {
  std::string is;                     ///< layout expression
  std::vector<std::string> or_names;  ///< other names that a reader accepts
  Expression when;
  std::string in;  ///< set of the layer axis: "layer.moe"
  std::vector<std::string>
      at;           ///< places of a tensor without layer number: "E", "L", "m", "decoder=L-1"
  Expression copy;  ///< a further copy, written when this holds
  std::vector<std::string> whole;  ///< axes that the rules do not cut here
  bool optional = false;           ///< the model may lack it
  Expression optional_when;        ///< it may do so only where this holds of what a source has
  std::string quantised;  ///< layout expression of the weight whose parts are stored, where it
                          ///< differs from `is`
  std::string view;       ///< layout expression of the shape it has in the file
  std::string cast;       ///< dtype it has in this format
  Expression add;         ///< the stored value is the logical one plus this number
  bool as_it_is = false;  ///< never a quantised weight: a stored tensor that is carried without
                          ///< being understood
  Expression apart_when;  ///< alternatives are stored tensors of their own with these endings
  std::vector<std::string> apart_as;
  std::string place;  ///< file:line
};

/// A stored name and the entries that may be meant by it, first choice first; without entries it
/// takes an inherited name away.
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

/// An axis that a mesh axis cuts into equal parts, or one of the map's places, which a pipeline
/// deals out.
struct AxisRule {
  std::string mesh;  ///< "tp"
  std::string axis;
  bool cut_rows =
      false;  ///< uneven = "cut": with more ranks than indices, the stored rows are cut instead
  Expression pad;  ///< the size is rounded up to a multiple of this first
  Expression
      divides;  ///< with cut_rows: the mesh must divide this number even so (attention heads)
  std::string place;
};

/// "layer.moe expert" = ["experts.gate: moe_inter hidden"]
struct MapTensor {
  std::string name;
  std::string axes;  ///< front axes and further axes: "layer.moe expert moe_inter hidden"
  std::string place;
};

/// A dimension of a quantised weight's part (PartDim), as written: it counts blocks or elements of
/// one of the weight's last dimensions.
struct MapPartDim {
  PartDim::Kind kind = PartDim::Kind::blocks;
  Expression block;
  Expression inner;
};

/// One of the stored tensors that a quantised weight is made of.
struct MapQuantPart {
  std::string name;    ///< "values", "scale"
  std::string stored;  ///< is in the stored name where the weight has "weight": "weight_scale_inv"
  std::vector<std::string> dtypes;      ///< those that it can have
  std::vector<MapPartDim> dims;         ///< for the weight's last dimensions
  std::vector<MapPartDim> global_dims;  ///< the same in Megatron's global formats; empty: as
                                        ///< `dims`
  Index vector = 0;  ///< > 0: a dimension of this extent after all others, the same numbers for
                     ///< every layout ("weight_shape")
  bool optional = false;
  bool fused = false;  ///< QuantPart::fused
  Expression when;     ///< over facts: the form has the part only where this holds
};

/// How values are computed: (code - zero point) * scale, then times or divided by a number for the
/// whole weight.
struct QuantDecode {
  std::string codes;  ///< "e4m3", "e5m2", "e2m1", "i8", "int4" (of 4 bits, in 32-bit words); ""
                      ///< when values cannot be computed
  std::string times;  ///< the part with the second scale
  std::string divided_by;  ///< likewise
  std::string order;       ///< where codes lie: "interleaved", "rows", "row_pairs" as in
                           ///< quant::CodeOrder; "" for along the rows
  bool transposed =
      false;              ///< stored with a row for each column; of "interleaved" and "rows" always
  Index divisor = 1;      ///< values are divided by it, last
  Index zero_offset = 0;  ///< of stored zero points; of a MapQuant in its own `zero_offset`
};

/// How the config.json of a Hugging Face folder describes a scheme.
struct QuantLabel {
  std::string method;         ///< quantization_config.quant_method: "modelopt", "fp8", "mxfp4",
                              ///< "compressed-tensors"
  std::string algorithm;      ///< ModelOpt's quant_algo, "NVFP4"
  std::string weights_alone;  ///< quant_algo where no scale of the input is stored; "" for the same
  std::vector<std::string> others;  ///< quant_algo of configurations that store the same tensors
  std::string smoothed;             ///< quant_algo where the input has a scale for each column
                                    ///< ("pre_quant_scale"); "" for the same
  Index group_size = 0;             ///< 0: none
  Index bits = 0;                   ///< of a weight
  std::string type = "float";       ///< of a weight
  std::string strategy;             ///< "channel"; "" for none
  friend bool operator==(QuantLabel const&, QuantLabel const&) = default;
};

/// A way to store weights in fewer bits: [quant.NAME]. Without the part `values`: what may be
/// stored beside weights that are stored as they are.
struct MapQuant {
  std::string name;
  QuantDecode decode;
  QuantLabel label;
  Expression when;   ///< over facts: the scheme is looked for only when this holds
  Expression first;  ///< over facts: when this holds, it is looked for before those without it,
                     ///< because shapes alone do not always tell it from another
  Expression zero_offset;    ///< over facts: zero points are the stored ones and this
  bool only_values = false;  ///< looked for only where values are computed
  std::vector<MapQuantPart> parts;
  std::string place;
};

/// How a trainer calls a part of a model beside the language model. Patterns have at most one '*',
/// which stands for the same text in all of them.
struct MapKeptName {
  std::string trainer;              ///< "vision_model.patch_embed.*"
  std::vector<std::string> family;  ///< names of Hugging Face: the first is the one to write,
                                    ///< unless a reference has another
  bool own = false;  ///< tensors of the trainer's own: entries of the maps describe them
};

/// The names of one trainer: [kept.NAME].
struct MapKept {
  std::string name;                      ///< "bridge"
  std::string root = "language_model.";  ///< before all names of the language model
  std::vector<MapKeptName> names;
  std::vector<std::string> drop;  ///< names of Hugging Face that the trainer has no place for
  std::string place;
};

/// How a program names the two matrices of a low-rank adapter (LoRA) beside their weight:
/// [adapter.NAME]. The stored name of a matrix is that of its weight from `prefix` on, with `a` or
/// `b` where the weight has "weight" and what follows it.
struct MapAdapter {
  std::string name;
  bool family = false;  ///< beside the names of a model's family; else beside Megatron's
  std::string prefix;   ///< "base_model.model."
  /// "adapter.{part}linear_in.weight": {part} is a word of `parts` and a dot, or nothing; {rest} is
  /// what the weight's name has behind "weight". Without {rest}, tensors that the rest counts lie
  /// in one.
  std::string a;
  std::string b;
  std::string cut;  ///< the mesh axis that cuts the rows of a matrix which no rule cuts; "": none
  /// Weight and word: where adapters of weights that share a stored tensor are apart
  /// ("attn.q", "adapter_q"). A weight that is not here shares its adapter with its neighbours.
  std::vector<std::pair<std::string, std::string>> parts;
  /// Adapters of a parameter with all experts are two matrices: A as (expert rank) in, B as
  /// out (rank expert), under the name of the module (peft's ParamWrapper).
  bool packed = false;
  // Patterns of logical weights:
  std::vector<std::string> except;  ///< they have no adapter
  std::vector<std::string> apart;   ///< parts of B are stored tensors of their own where those of
                                    ///< the weight are (MapEntry::apart_as)
  std::vector<std::string> joined;  ///< global formats hold the rows of B rank by rank
  std::vector<std::string> halved;  ///< of B in `parts`: global formats hold first the first half
                                    ///< of each rank's rows
  std::string place;
};

/// A map file as written, parsed but not yet evaluated for a model.
struct MapFile {
  std::string name;  ///< file name, for messages
  std::vector<std::string>
      bases;          ///< maps that this one inherits from, by name; empty once they are taken in
  std::string facts;  ///< member of config.json whose members come before those of the top level
                      ///< ("text_config")
  std::vector<std::string> model_types;  ///< [match] model_type
  Expression
      match_args;  ///< [match] args: holds for the `args` of a Megatron checkpoint of this family
  Expression match_config;  ///< [match] config: holds for this family's config.json, where another
                            ///< map has its model_type, too
  std::vector<std::string> mesh;  ///< the parallel axes that rules may name and expressions ask for
  std::vector<NamedExpression> options;
  std::vector<NamedExpression> places;
  std::vector<NamedExpression> let;
  std::vector<NamedExpression> axes;
  std::vector<NamedExpression> sets;  ///< name "layer.moe"
  std::vector<NamedExpression>
      present;  ///< tensor pattern: whether the model has it, where no family file says so
  std::vector<NamedExpression> expected;  ///< tensor pattern: whether Megatron-Core's own model has
                                          ///< it by args; null where that is not known
  std::vector<std::string>
      own_args;  ///< args that maps write for this program alone: Megatron knows none of them
  std::vector<AxisRule> rules;
  std::vector<MapTensor> tensors;
  std::vector<MapMacro> macros;
  std::vector<MapName> stored;
  std::vector<std::string> drop;
  std::vector<std::string> keep;  ///< patterns of stored names without a logical tensor, which can
                                  ///< be carried as they are
  std::vector<std::string> registration;  ///< parts of stored names in the order in which the
                                          ///< framework registers modules and parameters
                                          ///< (core/mapping/registration.hpp)
  std::vector<std::string> buffers;  ///< patterns of stored names that are no parameters: training
                                     ///< has no optimizer state of them
  std::vector<std::string> full_precision;  ///< patterns of logical tensors that a job which makes
                                            ///< 16-bit weights leaves in F32
  std::vector<std::string> f32_beside_f16;  ///< those that stay so beside F16 only
  std::vector<NamedExpression> args;  ///< Megatron argument = expression over config.json; an empty
                                      ///< expression takes an inherited one away
  std::vector<NamedExpression> config;    ///< config.json key = expression over `args`
  std::vector<NamedExpression> defaults;  ///< config.json member = what it is where config.json
                                          ///< leaves it out; an empty expression: nothing
  std::vector<std::string> kept_members;  ///< patterns of config.json members that describe parts
                                          ///< which are carried as they are
  // Meanings of Megatron's arguments:
  std::vector<std::string> function_args;   ///< they change what a model computes
  std::vector<std::string> layout_args;     ///< rows on disk have another order than maps describe
  std::vector<std::string> structure_args;  ///< they give tensors names, shapes, dtypes and places
  std::vector<std::string> training_args;   ///< patterns: of training and programs alone
  std::vector<std::string> model_words;     ///< patterns of arguments that may be of the model
  std::vector<NamedExpression> neutral;     ///< pattern of a config.json member = whether args need
                                            ///< not say it; an empty expression: they must
  std::vector<MapQuant> quant;
  std::vector<MapKept>
      kept;  ///< how trainers call parts that `keep` lists; the usual trainer first
  std::vector<MapAdapter> adapters;
};

/// Parses a map as it is written; `bases` are not looked for. All unknown keys and mistakes are
/// Errors of kind usage with file and line.
MapFile parse_map_file(std::string_view text, std::string_view file_name);

/// The parallel axes that a map knows: those that it lists, then those of its rules.
std::vector<std::string> mesh_axes(MapFile const& map);
/// The mesh axis that cuts an axis; "" for none.
std::string mesh_axis_of(MapFile const& map, std::string_view axis);
/// The mesh axis whose rule names the map's places: the pipeline's. "" for none.
std::string pipeline_axis(MapFile const& map);

/// `derived` on top of a map that it inherits from: tables unite, and where both define a thing
/// `derived` holds; lists follow one another. [match] and the name are the derived map's.
MapFile inherited(MapFile base, MapFile derived);

/// Reads a map and all that it inherits from: a base is NAME.toml in the folder of the map, else in
/// the first of `folders` that has it. Bases that inherit from each other in a circle are an Error
/// of kind usage.
MapFile load_map_file(std::filesystem::path const& path,
                      std::span<std::filesystem::path const> folders = {});

}  // namespace reshard
