#pragma once

#include <string>
#include <vector>

#include "core/mapping/sides/side.hpp"
#include "stages/plan/source/facts/model_facts.hpp"

namespace reshard {

/// Stored tensors of one form of Megatron's files, each once, as numbers of layers and experts
/// turned into `*` show them.
struct NameForm {
  std::string pattern;  ///< "decoder.layers.*.mlp.linear_fc1.bias"
  std::size_t count = 0;
};

/// A stored tensor to which two descriptions give different shapes.
struct ShapeConflict {
  std::string name;
  std::vector<Index> in_model;
  std::vector<Index> by_args;
};

/// How the tensors that args describe differ from those of a model.
struct ArgsDifference {
  std::vector<NameForm> unknown;      ///< the model has them, and args know nothing of them
  std::vector<NameForm> missing;      ///< args ask for them, and the model has none
  std::vector<ShapeConflict> shapes;  ///< both have them
  bool empty() const { return unknown.empty() && missing.empty() && shapes.empty(); }
};

/// Whose reading of args is meant: that of Megatron's map, or that of Megatron-Core itself, which
/// knows no `own_args` of the map and decides by its `expected` where the map leaves a tensor to
/// the files.
enum class ArgsReader { map, megatron };

/// The tensors of a checkpoint with these args in the form that `options` choose (one rank, one
/// stage), against those of the model. Pre: no weight of the model is quantised (Model::add_part).
/// The vocabulary is not compared: padding and model.true_vocab_size decide over it.
ArgsDifference args_difference(Model const& model, MapFile const& core, Json const& args,
                               SideOptions options, ArgsReader reader);

/// "3 tensors: decoder.layers.*.mlp.linear_fc1.bias (3)" and the like, four patterns at most; "3
/// more tensors: …" with a word.
std::string shown(std::vector<NameForm> const& groups, std::string_view word = "");
/// "'decoder.….weight' is [30, 1, 3], and [30, 1, 4] by args"
std::string shown(ShapeConflict const& conflict);

/// The first difference as a sentence without its end; "" for none.
std::string first_difference(ArgsDifference const& difference);

/// Compares args of a target, made by a family's map, with the model. Sizes that contradict it are
/// an Error of kind usage, as the map is wrong then; other differences are warnings. `family`: the
/// map's file name.
void check_made_args(Model const& model, MapFile const& core, std::string const& family,
                     Json const& args, SideOptions const& options,
                     std::vector<std::string>& warnings);

/// The complaint of Megatron-Core's own model, loaded strictly, about the tensors of a model with
/// these args; "" for nothing.
std::string strict_load_note(Model const& model, MapFile const& core, Json const& args,
                             SideOptions const& options);

}  // namespace reshard
