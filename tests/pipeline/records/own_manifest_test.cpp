#include "pipeline/records/own_manifest.hpp"

#include <gtest/gtest.h>

namespace reshard {
namespace {

std::vector<TensorDigest> model() {
  return {{"embedding", "bf16", {40, 8}, {"vocab", "hidden"}, 1},
          {"norm", "bf16", {8}, {"hidden"}, 2},
          {"norm (exp_avg)", "f32", {8}, {"hidden"}, 3}};
}

Manifest manifest_of(std::vector<TensorDigest> tensors) {
  Manifest manifest;
  manifest.map = "llama";
  manifest.total = total_digest(tensors);
  manifest.tensors = std::move(tensors);
  return manifest;
}

std::string why(std::vector<TensorDigest> const& found) {
  return why_other_total(manifest_of(model()), found, "reshard.json");
}

TEST(OwnManifest, CountsRowsOfTheVocabulary) {
  EXPECT_EQ(vocab_in(manifest_of(model())), 40);
  EXPECT_EQ(vocab_in(manifest_of({{"norm", "bf16", {8}, {"hidden"}, 2}})), 0);
  Manifest stored = manifest_of({{"norm", "bf16", {8}, {"hidden"}, 2}});
  stored.vocab = 30;
  EXPECT_EQ(vocab_in(stored), 30);
  EXPECT_EQ(parse_manifest(manifest_text(stored), "reshard.json").vocab, 30);
}

TEST(OwnManifest, HasNothingToExplainWhereTotalsAgree) {
  EXPECT_EQ(why(model()), "");
  Manifest without = manifest_of(model());
  without.total.clear();  // of a container that records digests of tensors alone
  EXPECT_EQ(why_other_total(without, {}, "a.h5"), "");
}

TEST(OwnManifest, ExplainsEveryOtherTotal) {
  std::string const records = "reshard.json records the total " + total_digest(model()) + ": ";
  std::vector<TensorDigest> found = model();
  found[0].shape = {64, 8};
  EXPECT_EQ(why(found), records +
                            "there 'embedding' is bf16 [40, 8], here it is bf16 [64, 8]. Leave "
                            "out --map and --config to count as it does.");
  found = model();
  found[1].crc64 = found[2].crc64 = 9;
  EXPECT_EQ(why(found), records +
                            "2 of its 3 tensors have other values now, the first is 'norm'. "
                            "`reshard verify` names the files that changed.");
  found = model();
  found.pop_back();
  EXPECT_EQ(why(found), records + "it has 3 tensors, 1 of which is left out here.");
  found = model();
  found[0].name = "model.embed_tokens.weight";
  EXPECT_EQ(why(found), records +
                            "it names the tensors by the map \"llama\", here 1 of 3 have other "
                            "names. Leave out --map, or give --map llama.");
}

}  // namespace
}  // namespace reshard
