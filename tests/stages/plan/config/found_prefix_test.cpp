// The prefix of a DCP source that nobody states: the only one that fits config.json is taken.

#include "stages/plan/config/found_prefix.hpp"

#include "tests/stages/plan/planning.hpp"

namespace reshard::test {
namespace {

/// A DCP source with the names of a model of llama behind each of these prefixes, and others.
MadeCheckpoint nested(std::vector<std::string> const& prefixes,
                      std::vector<MadeTensor> others = {}) {
  std::vector<MadeTensor> tensors;
  MadeCheckpoint const folder = made_huggingface(sample_model("llama"));
  for (std::string const& prefix : prefixes)
    for (StoredTensor const& tensor : folder.value.stored.tensors)
      tensors.push_back({prefix + tensor.name.text(), tensor.shape.sizes(), tensor.dtype});
  std::ranges::move(others, std::back_inserter(tensors));
  MadeCheckpoint made = made_dcp(tensors);
  made.value.model.config = sample_model("llama").config;
  return made;
}

std::string found(MadeCheckpoint const& source, PrefixUse use = PrefixUse::job,
                  PlanRequest const& request = request_for(FormatId::torch_dist)) {
  auto const prefix = found_prefix(source.value, request, false, use);
  return prefix ? prefix->prefix : "none";
}

TEST(FoundPrefix, IsTheOnlyOneThatFits) {
  EXPECT_EQ(found(nested({"model."})), "model.");
  EXPECT_EQ(found(nested({"app.model._orig_mod."})), "app.model._orig_mod.");
  EXPECT_EQ(found(nested({"model."}, {{"head.model.norm.weight", {8}}}), PrefixUse::look),
            "model.");
}

TEST(FoundPrefix, IsNotLookedForWhereNamesFitOrNothingIsKnown) {
  EXPECT_EQ(found(nested({""})), "none");
  EXPECT_EQ(found(nested({"", "ema."})), "none");
  MadeCheckpoint unknown = nested({"model."});
  unknown.value.model.config = Json();
  EXPECT_EQ(found(unknown), "none");
  PlanRequest stated = request_for(FormatId::torch_dist);
  stated.read.prefix = "model.";
  EXPECT_EQ(found(nested({"model."}), PrefixUse::job, stated), "none");
  PlanRequest kept = request_for(FormatId::dcp);
  EXPECT_FALSE(found_prefix(nested({"model."}).value, kept, true, PrefixUse::job));
}

TEST(FoundPrefix, SeveralAreListed) {
  MadeCheckpoint const source = nested({"model.", "ema."});
  std::string const sentence = refused(ErrorKind::source, [&] { (void)found(source); });
  EXPECT_NE(sentence.find("behind 'ema.', 'model.'. Set source.prefix to the one that is meant"),
            std::string::npos)
      << sentence;
}

TEST(FoundPrefix, OfAJobLosesNothing) {
  EXPECT_EQ(found(nested({"model."}, {{"critic.weight", {8}}})), "none");
  EXPECT_EQ(found(nested({"model."}, {{"critic.weight", {8}}}), PrefixUse::look), "model.");
  EXPECT_EQ(found(nested({"model."}, {{"train_state.step", {}}})), "model.");
  PlanRequest drops = request_for(FormatId::torch_dist);
  drops.read.unmapped = Unmapped::drop;
  EXPECT_EQ(found(nested({"model."}, {{"critic.weight", {8}}}), PrefixUse::job, drops), "model.");
}

}  // namespace
}  // namespace reshard::test
