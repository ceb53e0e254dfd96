#include "stages/plan/source/state/state_policy.hpp"

#include <algorithm>

#include "core/formats/megatron/state/rank_states.hpp"
#include "tests/stages/plan/planning.hpp"
#include "tests/support/read_only_format.hpp"

namespace reshard::test {
namespace {

/// A format whose inventory the test says.
class HoldingFormat final : public ReadOnlyFormat {
 public:
  explicit HoldingFormat(FormatId id) : id_(id) {}
  FormatId id() const override { return id_; }
  TargetTraits target() const override { return format_of(id_).target(); }

 private:
  FormatId id_;
};

struct Verdict {
  std::string refusal;  ///< of kind source; "" for none
  Lines warnings;
};

Verdict judged(FormatId from, FormatId to, StateInventory const& state, bool drop_optimizer,
               bool drop_rng) {
  HoldingFormat const format(from);
  Checkpoint source;
  source.format = &format;
  source.folder = "/ckpt";
  source.state.inventory = state;
  PlanRequest request;
  request.target.format = to;
  request.read.drop_optimizer = drop_optimizer;
  request.read.drop_rng = drop_rng;
  Verdict verdict;
  try {
    check_state(source, view_of(source), request, verdict.warnings);
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), ErrorKind::source);
    verdict.refusal = error.sentence();
  }
  return verdict;
}

StateInventory optimizer(StateForm form) {
  StateInventory state;
  state.optimizer = {form, "an example"};
  return state;
}

StateInventory rng(StateForm form) {
  StateInventory state;
  state.rng = {form, "an example"};
  return state;
}

constexpr FormatId dist = FormatId::torch_dist;
constexpr FormatId shares = FormatId::megatron;

TEST(StatePolicy, NothingIsSaidWhereThereIsNone) {
  Verdict const verdict = judged(shares, shares, {}, false, false);
  EXPECT_EQ(verdict.refusal, "");
  EXPECT_EQ(verdict.warnings, Lines());
  EXPECT_EQ(judged(shares, shares, {}, true, true).warnings, Lines()) << "nothing was dropped";
}

TEST(StatePolicy, EachFormOfOptimizerState) {
  struct Case {
    StateForm form;
    FormatId from, to;
    char const* says;  ///< "" where it is carried
  };
  for (Case const& one : std::vector<Case>{
           {StateForm::by_weight, dist, dist, ""},
           {StateForm::by_weight, dist, shares, ""},
           {StateForm::by_weight, dist, FormatId::huggingface,
            "which the target's format cannot hold"},
           {StateForm::by_weight, FormatId::dcp, dist, ""},
           {StateForm::by_weight, FormatId::dcp, FormatId::huggingface,
            "which the target's format cannot hold"},
           {StateForm::by_weight, FormatId::fsdp_dtensor, FormatId::fsdp_dtensor, ""},
           {StateForm::by_weight, FormatId::fsdp_dtensor, shares, ""},
           {StateForm::by_weight, FormatId::hdf5, dist, ""},
           {StateForm::by_layout, dist, dist,
            "keys that this version does not know ('an example')"},
           {StateForm::by_layout, dist, shares, "this version does not know"},
           {StateForm::in_buffers, dist, dist, ""},
           {StateForm::in_buffers, dist, shares, ""},
           {StateForm::in_buffers, dist, FormatId::huggingface,
            "which the target's format cannot hold"},
           {StateForm::in_rank_files, FormatId::dcp, dist, "in files of single ranks"},
           {StateForm::in_model_files, shares, FormatId::huggingface,
            "Set target.format = \"torch_dist\" or \"megatron\""},
           {StateForm::in_model_files, shares, shares, "cannot reshard ('an example')"},
           {StateForm::in_model_files, shares, dist, "cannot reshard ('an example')"}}) {
    std::string const said = judged(one.from, one.to, optimizer(one.form), false, false).refusal;
    EXPECT_EQ(said.empty(), std::string_view(one.says).empty()) << said;
    EXPECT_NE(said.find(one.says), std::string::npos) << said;
    EXPECT_TRUE(said.empty() || said.find("source.optimizer = \"drop\"") != std::string::npos);
    EXPECT_EQ(judged(one.from, one.to, optimizer(one.form), true, false).refusal, "");
    EXPECT_NE(judged(one.from, one.to, optimizer(one.form), false, true).refusal.empty(),
              !std::string_view(one.says).empty())
        << "source.rng says nothing of the optimizer";
  }
}

TEST(StatePolicy, EachFormOfGenerators) {
  struct Case {
    StateForm form;
    FormatId from, to;
    char const* says;
  };
  for (Case const& one : std::vector<Case>{
           {StateForm::by_layout, dist, dist, ""},
           {StateForm::by_layout, dist, shares, "holds random-generator state, which the target's"},
           {StateForm::in_rank_files, FormatId::dcp, dist, "in files of single ranks"},
           {StateForm::in_model_files, shares, shares, "which belongs to the old layout"}}) {
    std::string const said = judged(one.from, one.to, rng(one.form), false, false).refusal;
    EXPECT_EQ(said.empty(), std::string_view(one.says).empty()) << said;
    EXPECT_NE(said.find(one.says), std::string::npos) << said;
    EXPECT_TRUE(said.empty() || said.find("source.rng = \"drop\"") != std::string::npos);
    EXPECT_EQ(judged(one.from, one.to, rng(one.form), false, true).refusal, "");
  }
}

TEST(StatePolicy, WhatIsDroppedIsSaid) {
  StateInventory both = optimizer(StateForm::in_model_files);
  both.rng = {StateForm::in_rank_files, "rng_state_rank_0.pt"};
  EXPECT_EQ(judged(shares, shares, both, true, true).warnings,
            (Lines{"optimizer state is dropped (source.optimizer = \"drop\")",
                   "random-generator state is dropped (source.rng = \"drop\")"}));
}

TEST(StatePolicy, AFolderThatIsNoRunIsNotWarnedOf) {
  StateInventory const state = optimizer(StateForm::by_weight);
  EXPECT_EQ(judged(dist, FormatId::huggingface, state, true, false).warnings, Lines())
      << "the job asked for it, and the folder is no run";
  EXPECT_EQ(judged(dist, FormatId::dcp, state, true, false).warnings,
            Lines{"optimizer state is dropped (source.optimizer = \"drop\")"});
  EXPECT_EQ(judged(dist, dist, state, true, false).warnings,
            Lines{"optimizer state is dropped (source.optimizer = \"drop\")"});
}

TEST(StatePolicy, WhatNoTargetTakesOverIsSaid) {
  StateInventory state;
  state.others = {"dataloader", "lr"};
  EXPECT_EQ(judged(FormatId::hdf5, shares, state, false, false).warnings,
            Lines{"dropped, because the target's format cannot hold them: dataloader, lr"});
}

constexpr FormatId with_room[] = {dist, shares, FormatId::fsdp_dtensor, FormatId::hdf5,
                                  FormatId::deepspeed};

TEST(StatePolicy, WhichFormatsStateGoesBetween) {
  constexpr FormatId by_name[] = {dist,           FormatId::dcp,       FormatId::fsdp_dtensor,
                                  FormatId::hdf5, FormatId::deepspeed, FormatId::fsdp_ranks};
  for (Format const* from : all_formats())
    for (Format const* to : all_formats()) {
      Checkpoint source;
      source.format = from;
      PlanRequest request;
      request.target.format = to->id();
      EXPECT_EQ(carries_state(source, request), std::ranges::count(by_name, from->id()) == 1 &&
                                                    std::ranges::count(with_room, to->id()) == 1)
          << from->name() << " to " << to->name();
    }
}

TEST(StatePolicy, WhichFormatsTakeStateOfRankFiles) {
  for (Format const* to : all_formats()) {
    Checkpoint source;
    source.format = &format_of(shares);
    source.state.rank_states = std::make_shared<megatron::RankStates>();
    PlanRequest request;
    request.target.format = to->id();
    EXPECT_EQ(carries_state(source, request), std::ranges::count(with_room, to->id()) == 1)
        << to->name();
  }
}

TEST(StatePolicy, WhyStateFollowsNoWeightIsSaid) {
  StateInventory state = optimizer(StateForm::by_layout);
  state.optimizer.fault = "two models have it. Choose one";
  EXPECT_EQ(judged(FormatId::dcp, dist, state, false, false).refusal,
            "/ckpt: two models have it. Choose one; or set source.optimizer = \"drop\" to continue "
            "without optimizer state.");
  EXPECT_EQ(judged(FormatId::dcp, dist, state, true, false).refusal, "");
}

TEST(StatePolicy, GeneratorsOfRankFilesStayBehindWhenTheirOptimizerGoes) {
  HoldingFormat const format(shares);
  Checkpoint source;
  source.format = &format;
  source.storage = Storage::shares;
  source.state.inventory = rng(StateForm::in_model_files);
  source.state.inventory.optimizer = {StateForm::in_buffers, "distrib_optim.pt"};
  source.state.rank_states = std::make_shared<megatron::RankStates>();
  PlanRequest request;
  request.target.format = dist;
  Lines warnings;
  check_state(source, StoredView(), request, warnings);
  EXPECT_EQ(warnings, Lines{"random-generator state is dropped, because it belongs to the old "
                            "layout: start training with --no-load-rng"});
}

}  // namespace
}  // namespace reshard::test
