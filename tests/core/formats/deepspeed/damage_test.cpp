// Saves of DeepSpeed that are damaged, incomplete or mixed, and what they are refused with.

#include <algorithm>
#include <functional>
#include <set>

#include <gtest/gtest.h>

#include "core/base/hash/crc32.hpp"
#include "core/containers/torch/torch_file.hpp"
#include "core/formats/deepspeed/universal.hpp"
#include "core/formats/format.hpp"
#include "stages/plan/identity_plan.hpp"
#include "tests/support/expect_refused.hpp"
#include "tests/support/sample_deepspeed.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;
using pickle::Document;
using pickle::NodeId;

/// A torch file in the making. No two bytes near each other are alike.
struct Draft {
  Document document;

  NodeId number(std::int64_t value) { return document.add_int(value); }
  NodeId tensor(std::vector<Index> shape, DType dtype = DType::f32) {
    return document.add_tensor(dtype, std::move(shape));
  }
  NodeId sizes(std::vector<Index> const& values) {
    std::vector<NodeId> items;
    for (Index const value : values) items.push_back(number(value));
    return document.add_tuple(std::move(items));
  }
  NodeId list(std::vector<NodeId> items) { return document.add_list(std::move(items)); }
  NodeId dict(std::vector<std::pair<std::string_view, NodeId>> const& members) {
    NodeId const made = document.add_dict();
    for (auto const& [key, value] : members) document.set(made, key, value);
    return made;
  }
  /// The value under these keys from the root on.
  NodeId under(std::vector<std::string_view> const& keys) const {
    NodeId at = document.root;
    for (std::string_view const key : keys) at = document.find(at, key);
    return at;
  }
  void set(std::vector<std::string_view> const& dict, std::string_view key, NodeId value) {
    document.set(under(dict), key, value);
  }

  void write(fs::path const& path, std::uint64_t seed) const {
    fs::create_directories(path.parent_path());
    Document copy = document;
    TorchFilePlan const plan = plan_torch_file(copy, path.stem().string());
    File const file = File::create(path);
    file.resize(plan.size_bytes);
    std::vector<std::uint32_t> sums;
    for (auto const& storage : plan.storages) {
      auto const bytes = test::sample_bytes(seed + sums.size(), storage.size_bytes);
      file.write_at(storage.payload_offset_bytes, bytes);
      sums.push_back(crc32(bytes));
    }
    finish_torch_file(file, plan, sums);
  }
};

/// A save: its model states, what each rank has of the optimizer, and files of parameters where it
/// is universal.
struct Save {
  Draft model;
  std::vector<Draft> ranks = {};
  std::vector<std::pair<std::string, Draft>> universal = {};
  bool split = false;

  void write(fs::path const& folder) const {
    if (split)
      for (std::size_t r = 0; r < std::max<std::size_t>(ranks.size(), 1); ++r)
        model.write(folder / fmt::format("zero_pp_rank_{}_mp_rank_00_model_states.pt", r), r);
    else
      model.write(folder / "mp_rank_00_model_states.pt", 100);
    for (std::size_t r = 0; r < ranks.size(); ++r)
      ranks[r].write(folder / fmt::format("zero_pp_rank_{}_mp_rank_00_optim_states.pt", r),
                     200 * (r + 1));
    for (auto const& [name, draft] : universal) draft.write(folder / "zero" / name, name.size());
  }
};

/// One parameter "w" of four elements.
Draft model_states(Index ranks) {
  Draft draft;
  draft.document.root = draft.dict({});
  draft.set({}, "module", draft.dict({{"w", draft.tensor({4}, DType::bf16)}}));
  draft.set({}, "param_shapes", draft.list({draft.dict({{"w", draft.sizes({4})}})}));
  if (ranks > 0) draft.set({}, "dp_world_size", draft.number(ranks));
  return draft;
}

/// Two ranks of ZeRO stage 2.
Save ranks_of_two() {
  Save save{.model = model_states(2)};
  for (int r = 0; r < 2; ++r) {
    Draft& draft = save.ranks.emplace_back();
    NodeId const states = draft.list({draft.dict({{"exp_avg", draft.tensor({2})}})});
    draft.document.root = draft.dict(
        {{"optimizer_state_dict",
          draft.dict({{"zero_stage", draft.number(2)},
                      {"partition_count", draft.list({draft.number(2)})},
                      {"single_partition_of_fp32_groups", draft.list({draft.tensor({2})})},
                      {"base_optimizer_state", states}})}});
  }
  return save;
}

/// Stage 3 of one rank, with a frozen parameter "f".
Save split_of_one() {
  Save save{.model = model_states(1), .split = true};
  Draft& model = save.model;
  model.set({"module"}, "w", model.tensor({0}, DType::bf16));
  model.set({"module"}, "f", model.tensor({0}, DType::bf16));
  model.set({}, "frozen_param_shapes", model.dict({{"f", model.sizes({3})}}));
  model.set({}, "frozen_param_fragments", model.dict({{"f", model.tensor({3}, DType::bf16)}}));
  Draft& draft = save.ranks.emplace_back();
  draft.document.root =
      draft.dict({{"optimizer_state_dict",
                   draft.dict({{"zero_stage", draft.number(3)},
                               {"fp32_flat_groups", draft.list({draft.tensor({4})})}})}});
  return save;
}

Save universal() {
  Save save{.model = model_states(0)};
  for (char const* name : {"w/exp_avg.pt", "w/fp32.pt"}) {
    Draft& draft = save.universal.emplace_back(name, Draft{}).second;
    draft.document.root = draft.dict({{"param", draft.tensor({4})}});
  }
  Draft& settings = save.universal.emplace_back("optimizer_state.pt", Draft{}).second;
  settings.document.root = settings.dict({});
  return save;
}

void open(fs::path const& folder) {
  open_checkpoint(folder, FormatId::deepspeed, {}, LoneReader());
}

struct BadSave {
  Save (*base)();
  std::string says;
  std::function<void(Save&)> make;
};

constexpr std::string_view states = "optimizer_state_dict";

std::vector<BadSave> const bad_saves = {
    // model states
    {ranks_of_two, "'module' is not a dict of tensors",
     [](Save& save) { save.model.set({}, "module", save.model.number(1)); }},
    {ranks_of_two, "the shape of 'w' is not a list of sizes",
     [](Save& save) {
       save.model.document.set(save.model.document.at(save.model.under({"param_shapes"})).items[0],
                               "w", save.model.number(4));
     }},
    {ranks_of_two, "'param_shapes' has 'w' twice",
     [](Save& save) {
       NodeId const group = save.model.dict({{"w", save.model.sizes({4})}});
       save.model.set({}, "param_shapes", save.model.list({group, group}));
     }},
    {ranks_of_two, "has 1 groups of parameters, and 'param_shapes' of",
     [](Save& save) {
       save.model.document.at(save.model.under({"param_shapes"}))
           .items.push_back(save.model.dict({{"v", save.model.sizes({4})}}));
     }},
    {ranks_of_two,
     "would be elements [0, 4) of a vector of 2, and elements [0, 4) of the parameter's 6",
     [](Save& save) {
       save.model.set({}, "param_shapes",
                      save.model.list({save.model.dict({{"w", save.model.sizes({6})}})}));
     }},
    {ranks_of_two, "'w' has the shape (3) and no FP32 weight, where 'param_shapes' says (4)",
     [](Save& save) {
       save.ranks.clear();
       save.model.set({"module"}, "w", save.model.tensor({3}, DType::bf16));
     }},
    {split_of_one, "holds no 3 elements of the frozen parameter 'f'",
     [](Save& save) { save.model.set({}, "frozen_param_fragments", save.model.dict({})); }},
    // optimizer states
    {ranks_of_two, "'optimizer_state_dict' is not a dict",
     [](Save& save) { save.ranks[0].set({}, states, save.ranks[0].number(1)); }},
    {ranks_of_two, "'ds_zero_partition_groups' spreads parameters",
     [](Save& save) {
       save.ranks[0].set({states}, "ds_zero_partition_groups",
                         save.ranks[0].list({save.ranks[0].number(1)}));
     }},
    {ranks_of_two, "'partition_count' differs between groups",
     [](Save& save) {
       save.ranks[0].set({states}, "partition_count",
                         save.ranks[0].list({save.ranks[0].number(2), save.ranks[0].number(1)}));
     }},
    {ranks_of_two, "holds no FP32 weights of a ZeRO optimizer",
     [](Save& save) {
       save.ranks[0].set({states}, "single_partition_of_fp32_groups", save.ranks[0].list({}));
     }},
    {ranks_of_two, "the FP32 weights of group 0 are not a tensor",
     [](Save& save) {
       save.ranks[0].set({states}, "single_partition_of_fp32_groups",
                         save.ranks[0].list({save.ranks[0].number(1)}));
     }},
    {ranks_of_two, "'exp_avg' of group 0 has the shape (1, 2), expected a vector",
     [](Save& save) {
       Draft& draft = save.ranks[0];
       draft.set({states}, "base_optimizer_state",
                 draft.list({draft.dict({{"exp_avg", draft.tensor({1, 2})}})}));
     }},
    {ranks_of_two, "'step' is a tensor of 8 bytes in F64, expected one F32 element",
     [](Save& save) {
       Draft& draft = save.ranks[0];
       draft.set({states}, "base_optimizer_state",
                 draft.list({draft.dict({{"step", draft.tensor({}, DType::f64)}})}));
     }},
    {ranks_of_two, "the fragment of 'w' has no start or no numel",
     [](Save& save) {
       Draft& draft = save.ranks[0];
       NodeId const fragment = draft.dict({{"start", draft.number(0)}});
       draft.set({states}, "param_slice_mappings", draft.list({draft.dict({{"w", fragment}})}));
     }},
    {ranks_of_two, "the files hold 2 of 4 elements of 'w'",
     [](Save& save) {
       for (Draft& draft : save.ranks) {
         NodeId const fragment =
             draft.dict({{"start", draft.number(0)}, {"numel", draft.number(1)}});
         draft.set({states}, "param_slice_mappings", draft.list({draft.dict({{"w", fragment}})}));
       }
     }},
    {ranks_of_two, "'optimizer.state.w.fp32' is BF16 here and F32 in",
     [](Save& save) {
       Draft& draft = save.ranks[1];
       draft.set({states}, "single_partition_of_fp32_groups",
                 draft.list({draft.tensor({2}, DType::bf16)}));
     }},
    // universal checkpoints
    {universal, "expected a tensor, or a dict with a tensor 'param'",
     [](Save& save) {
       save.universal[0].second.set({}, "param", save.universal[0].second.number(1));
     }},
    {universal, "holds experts of AutoEP",
     [](Save& save) {
       Draft& draft = save.universal[0].second;
       draft.set({}, "ep_is_expert_param", draft.document.add_bool(true));
     }},
    {universal, "has the shape (5), and 'w' has (4)",
     [](Save& save) {
       save.universal[1].second.set({}, "param", save.universal[1].second.tensor({5}));
     }},
    {universal, "no file holds the FP32 weight of 'w'",
     [](Save& save) { save.universal.erase(save.universal.begin() + 1); }},
    {universal, "holds state of 'w', which 'param_shapes' of",
     [](Save& save) {
       save.split = true;
       save.model.set({}, "param_shapes",
                      save.model.list({save.model.dict({{"v", save.model.sizes({4})}})}));
     }},
};

TEST(DeepSpeedDamage, SavesWithoutDamageAreRead) {
  ScratchFolder const scratch("deepspeed_damage");
  int number = 0;
  for (auto const base : {ranks_of_two, split_of_one, universal}) {
    fs::path const folder = scratch.path() / std::to_string(number++);
    base().write(folder);
    EXPECT_NO_THROW(open(folder));
  }
}

TEST(DeepSpeedDamage, EachHasItsSentence) {
  ScratchFolder const scratch("deepspeed_damage");
  for (BadSave const& damage : bad_saves) {
    fs::path const folder = scratch.path() / "save";
    fs::remove_all(folder);
    Save save = damage.base();
    damage.make(save);
    save.write(folder);
    test::expect_refused(ErrorKind::source, damage.says, [&] { open(folder); });
  }
}

TEST(DeepSpeedDamage, FilesThatAreMissingAreNamed) {
  struct Names {
    std::vector<std::string> files;
    std::string says;
  };
  std::string const model = "mp_rank_00_model_states.pt";
  std::vector<Names> const cases = {
      {{model, "zero_pp_rank_1_mp_rank_00_optim_states.pt"}, "that of rank 0 is missing"},
      {{model, "zero_pp_rank_0_mp_rank_00_optim_states.pt",
        "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"},
       "are both of rank 0. The folder holds two saves"},
      {{"zero_pp_rank_0_mp_rank_00_optim_states.pt"}, "has no mp_rank_00_model_states.pt and no"},
      {{model, "zero/optimizer_state.pt"}, "holds no folder of a parameter"},
  };
  ScratchFolder const scratch("deepspeed_names");
  for (Names const& one : cases) {
    fs::path const folder = scratch.path() / "save";
    fs::remove_all(folder);
    for (std::string const& file : one.files) {
      fs::create_directories((folder / file).parent_path());
      write_text_file(folder / file, "");
    }
    test::expect_refused(ErrorKind::source, one.says, [&] { open(folder); });
  }
}

TEST(DeepSpeedTarget, StateNeedsSettingsAndWeightsAloneGetMasters) {
  ScratchFolder const scratch("deepspeed_target");
  PlanRequest request;
  request.target.format = FormatId::deepspeed;
  request.read.map = "none";
  auto const plan = [&](test::SampleCheckpoint const& sample) {
    Checkpoint const opened = open_checkpoint(sample.path, FormatId::automatic, {}, LoneReader());
    return make_identity_plan(opened, request, PlanLimits{});
  };
  JobPlan const weights = plan(test::make_deepspeed(scratch.path() / "weights"));
  std::size_t masters = 0;
  for (TargetFile const& file : weights.files) masters += file.path.filename() == "fp32.pt";
  EXPECT_GT(masters, 0U);
  EXPECT_EQ(weights.unseen.size(), masters);
  for (char const* slot : {"exp_avg.pt", "exp_avg_sq.pt", "step.pt"})
    EXPECT_EQ(
        std::ranges::count_if(weights.texts,
                              [&](TextFile const& text) { return text.path.filename() == slot; }),
        static_cast<std::ptrdiff_t>(masters))
        << slot;
  test::expect_refused(ErrorKind::source, "does not state the parameter groups of its optimizer",
                       [&] { plan(test::make_deepspeed_with_state(scratch.path() / "state")); });
}

/// With ds_to_universal's --inject_missing_state a frozen parameter has its weight, no moments and
/// no step. Strides do not distinguish zeros of a scalar that stand for them.
TEST(DeepSpeedTarget, StandInsOfAFrozenParameterAreNamedAndNotRead) {
  ScratchFolder const scratch("deepspeed_frozen");
  Save save = universal();
  save.model.set({"module"}, "f", save.model.tensor({}, DType::bf16));
  save.universal.reserve(8);
  Draft& settings = save.universal.back().second;
  auto const add = [&](std::string const& file) {
    Draft& draft = save.universal.emplace_back(file, Draft{}).second;
    draft.document.root = draft.tensor({});
  };
  add("w/step.pt");
  add("f/fp32.pt");
  settings.set({}, "param_groups", settings.list({settings.dict({})}));
  fs::path const folder = scratch.path() / "save";
  auto const opened = [&] {
    save.write(folder);
    return open_checkpoint(folder, FormatId::deepspeed, {}, LoneReader());
  };
  auto const names = [](Checkpoint const& checkpoint) {
    std::set<std::string> found;
    for (StoredTensor const& one : checkpoint.stored.tensors) found.insert(one.name.text());
    for (StoredScalar const& one : checkpoint.state.scalars) found.insert(one.name);
    return found;
  };
  std::set<std::string> const before = names(opened());
  EXPECT_TRUE(before.contains("optimizer.state.w.step"));
  PlanRequest request;
  request.target.format = FormatId::deepspeed;
  request.read.map = "none";
  JobPlan const plan = make_identity_plan(opened(), request, PlanLimits{});
  std::set<std::string> made;
  std::vector<NodeId> listed;
  for (TextFile const& text : plan.texts) {
    bool const settled = text.path.filename() == "optimizer_state.pt";
    EXPECT_EQ(text.text.find("f/step") != std::string::npos, settled);
    if (text.path.parent_path().filename() == "f") {
      made.insert(text.path.filename().string());
      listed.push_back(settings.document.add_string("f/" + text.path.stem().string()));
      add("f/" + text.path.filename().string());
    }
  }
  EXPECT_EQ(made, (std::set<std::string>{"exp_avg.pt", "step.pt"}));
  EXPECT_NE(names(opened()), before);
  settings.set({}, deepspeed::stand_ins_key, settings.list(listed));
  EXPECT_EQ(names(opened()), before);
}

}  // namespace
}  // namespace reshard
