// Advice that names keys of a job file, as a command without one gives it.

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "pipeline/job/option_words.hpp"

namespace reshard::test {
namespace {

TEST(OptionWords, StandForTheKeysOfAJobFile) {
  EXPECT_EQ(in_option_words("Put it beside the weights, or set source.config.", "--config"),
            "Put it beside the weights, or give --config.");
  EXPECT_EQ(in_option_words("Set source.config to the config.json of the model.", "--config-b"),
            "Give --config-b the config.json of the model.");
  EXPECT_EQ(in_option_words("Name a folder of this model as target.reference.", "--config-a"),
            "Name a folder of this model with --config-a.");
  EXPECT_EQ(
      in_option_words("[source] config: x. Set model.map = \"none\", or name it with model.map",
                      "--config"),
      "--config: x. Give --map none, or name it with --map");
}

TEST(OptionWords, AreThoseOfTheSide) {
  EXPECT_EQ(in_option_words("39 of 39 keys begin with 'model.'. Set source.prefix = \"model.\".",
                            "--config"),
            "39 of 39 keys begin with 'model.'. Give --prefix \"model.\".");
  EXPECT_EQ(in_option_words("Set source.prefix to what the names begin with, or name the map with "
                            "model.map.",
                            "--config-a"),
            "Give --prefix-a to what the names begin with, or name the map with --map-a.");
  EXPECT_EQ(
      in_option_words("[model] map = \"x\": B is not one. Set map to \"auto\".", "--config-b"),
      "--map-b x: B is not one. Give --map-b auto.");
  // names are those of both sides, or of neither
  EXPECT_EQ(in_option_words("Set model.map = \"none\".", "--config-b"), "Give --map none.");
}

TEST(OptionWords, LeaveOtherWordsAlone) {
  EXPECT_EQ(in_option_words("model.map = \"never closed", "--config"), "--map = \"never closed");
  EXPECT_EQ(in_option_words("[model] true_vocab_size = 299: too few. Rows would be lost: correct "
                            "the key or leave it out.",
                            "--config"),
            "reshard.json records a vocabulary of 299: too few. Rows would be lost: restore "
            "reshard.json or remove it.");
  EXPECT_EQ(in_option_words("Set source.optimizer = \"drop\".", "--config"),
            "Set source.optimizer = \"drop\".");
}

TEST(OptionWords, KeepTheKindOfAnErrorAndWhoHasIt) {
  auto const thrown = [](Error const& error) {
    try {
      with_option_words("--config", [&] { throw error; });
    } catch (Error const& found) {
      return found;
    }
    return Error(ErrorKind::internal, "nothing was thrown");
  };
  Error const error(ErrorKind::source, "set source.config");
  EXPECT_EQ(thrown(error).kind(), ErrorKind::source);
  EXPECT_EQ(thrown(error).sentence(), "give --config");
  EXPECT_FALSE(thrown(error).is_agreed());
  EXPECT_TRUE(thrown(error.agreed()).is_agreed());
}

}  // namespace
}  // namespace reshard::test
