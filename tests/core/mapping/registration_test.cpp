#include "core/mapping/registration.hpp"

#include <gtest/gtest.h>

#include "core/base/error.hpp"

namespace reshard {
namespace {

using Names = std::vector<std::string>;

Names const words{"weight", "bias", "embedding", "decoder", "layers", "norm", "mlp", "output"};

Names ordered(Names const& names) {
  Names result;
  for (std::size_t const at : registration_order(names, words, "map")) result.push_back(names[at]);
  return result;
}

TEST(Registration, IsDepthFirstInTheOrderOfTheWords) {
  EXPECT_EQ(ordered({"output.weight", "decoder.norm.weight", "decoder.layers.0.mlp.bias",
                     "decoder.layers.0.mlp.weight", "embedding.weight"}),
            (Names{"embedding.weight", "decoder.layers.0.mlp.weight", "decoder.layers.0.mlp.bias",
                   "decoder.norm.weight", "output.weight"}));
}

TEST(Registration, CountsNumbersByValue) {
  EXPECT_EQ(ordered({"layers.10.weight", "layers.9.weight", "layers.007.weight"}),
            (Names{"layers.007.weight", "layers.9.weight", "layers.10.weight"}));
  EXPECT_EQ(ordered({"bias1", "weight10", "weight1", "bias0", "weight0", "bias10"}),
            (Names{"weight0", "bias0", "weight1", "bias1", "weight10", "bias10"}));
}

TEST(Registration, PutsAModulesOwnParametersWithoutNumbersFirst) {
  EXPECT_EQ(ordered({"mlp.fc2", "mlp.fc1", "mlp.weight"}),
            (Names{"mlp.weight", "mlp.fc1", "mlp.fc2"}));
}

TEST(Registration, TwoUnknownWordsHaveNoOrder) {
  try {
    ordered({"decoder.strange.weight", "decoder.mlp.weight"});
    ADD_FAILURE();
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_NE(error.sentence().find("map: 'strange'"), std::string::npos) << error.sentence();
  }
  EXPECT_EQ(ordered({"decoder.strange.weight", "decoder.strange.bias"}),
            (Names{"decoder.strange.weight", "decoder.strange.bias"}))
      << "nothing to compare it with";
}

}  // namespace
}  // namespace reshard
