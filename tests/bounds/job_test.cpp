#include "core/mapping/maps/map_file.hpp"
#include "core/mapping/maps/toml_keys.hpp"
#include "core/mapping/model.hpp"
#include "core/mapping/sides/side.hpp"
#include "pipeline/job/job_spec.hpp"
#include "stages/write/journal.hpp"
#include "tests/bounds/bounds.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

void expect_usage(std::string const& refused) {
  EXPECT_TRUE(refused.starts_with("2: ")) << refused.substr(0, 2000);
}

/// TOML of which each part is one way to make a parser work hard; `bytes` is what each is about.
std::vector<std::pair<std::string, std::string>> hostile_toml(std::size_t bytes) {
  std::size_t const half = bytes / 2;
  std::string growing = "[a]\n";
  for (std::string name = "a"; growing.size() < bytes;) growing += "[" + (name += ".a") + "]\n";
  return {
      {"a dotted key", "a" + repeated(".a", half) + " = 1\n"},
      {"a dotted header", "[a" + repeated(".a", half) + "]\nb = 1\n"},
      {"a dotted key with quotes", "a" + repeated(".\"=\"", bytes / 4) + " = 1\n"},
      {"a dotted key with blanks", "a" + repeated(" . a", bytes / 4) + " = 1\n"},
      {"a dotted key in braces", "a = {a" + repeated(".a", half) + " = 1}\n"},
      {"headers that grow", growing},
      {"brackets", "a = " + std::string(half, '[') + std::string(half, ']') + "\n"},
      {"braces", "a = " + repeated("{a=", bytes / 4) + "1" + std::string(bytes / 4, '}') + "\n"},
      {"numbers", "a = [" + repeated("0,", half) + "]\n"},
      {"keys", joined(
                   "", bytes / 10, [](std::size_t i) { return fmt::format("\nk{:06}=0", i); }, "")},
      {"a text", "a = \"" + std::string(bytes, 'x') + "\"\n"}};
}

TEST(TomlBounds, JobFiles) {
  for (std::size_t const bytes : {std::size_t{60'000}, std::size_t{4'000'000}})
    for (auto const& [name, text] : hostile_toml(bytes))
      expect_usage(bounded("job, " + name, text, [](std::string const& toml) {
        static_cast<void>(parse_job_spec(toml, "job.toml", {}));
      }));
}

TEST(TomlBounds, Maps) {
  for (auto const& [name, text] : hostile_toml(4'000'000))
    expect_usage(bounded("map, " + name, text, [](std::string const& toml) {
      static_cast<void>(parse_map_file(toml, "map.toml"));
    }));
}

TEST(TomlBounds, KeysAreCountedAsAParserCutsThem) {
  EXPECT_EQ(longest_key(""), 1U);
  EXPECT_EQ(longest_key("a = 1.5\nb.c = 2"), 2U);
  EXPECT_EQ(longest_key("[a.b.c]\nd = 1"), 3U);
  EXPECT_EQ(longest_key("a.'b.c.d'.e = \"1.2.3.4.5\""), 3U);
  EXPECT_EQ(longest_key("a.\"b\\\".c.d\".e = 1"), 3U);
  EXPECT_EQ(longest_key("a = '''\n1.2.3.4\n'''\nb.c.d = 1"), 3U);
  EXPECT_EQ(longest_key("# a.b.c.d.e\na.b = 1 # a.b.c.d.e"), 2U);
  EXPECT_EQ(longest_key("a = {b.c.d = 1, e.f = 2}"), 3U);
}

/// A model of the family whose config.json says so.
void make_model(Json const& config) {
  MapFile const core = load_map_file(RESHARD_SOURCE_DIR "/configs/models/mcore.toml");
  MapFile const family = load_map_file(RESHARD_SOURCE_DIR "/configs/models/qwen3_moe.toml");
  Model model(family, core, {config, "config.json", 0});
  Side const side(model, family, {});
  static_cast<void>(side.names(nullptr));
}

Json config_with(std::string_view key, std::int64_t value) {
  Json config = parse_json(
      R"({"model_type": "qwen3_moe", "num_hidden_layers": 4, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 128, "num_experts": 4, "moe_intermediate_size": 16, "num_experts_per_tok": 2,
    "decoder_sparse_step": 1, "mlp_only_layers": [], "tie_word_embeddings": false})",
      "config.json");
  return config.set(key, value);
}

TEST(ModelBounds, SizesOfAConfigAreNotBelieved) {
  EXPECT_EQ(
      within_bounds("an honest config", 1000, [] { make_model(config_with("num_experts", 4)); }),
      "");
  for (char const* const key :
       {"num_hidden_layers", "num_experts", "vocab_size", "hidden_size", "num_attention_heads"})
    for (std::int64_t const size :
         {std::int64_t{-1}, std::int64_t{0}, std::int64_t{1} << 40U, INT64_MAX})
      within_bounds(fmt::format("{} = {}", key, size), 1000,
                    [&] { make_model(config_with(key, size)); });
  Json both = config_with("num_experts", 1 << 20);
  both.set("num_hidden_layers", std::int64_t{4096});
  std::string const refused =
      within_bounds("4096 layers of a million experts", 1000, [&] { make_model(both); });
  EXPECT_NE(refused.find("makes more than 4194304 names"), std::string::npos) << refused;
  Json nested = config_with("num_experts", 4);
  Json::Object many;
  for (int i = 0; i < 200'000; ++i) many.emplace_back(fmt::format("k{}", i), Json(i));
  nested.set("text_config", Json(std::move(many)));
  within_bounds("a text_config of 200k members", 3'000'000, [&] {
    MapFile const core = load_map_file(RESHARD_SOURCE_DIR "/configs/models/mcore.toml");
    MapFile family = load_map_file(RESHARD_SOURCE_DIR "/configs/models/qwen3_moe.toml");
    family.facts = "text_config";
    Model const model(family, core, {nested, "config.json", 0});
  });
}

TEST(JournalBounds, ManyEntriesAndCountsThatNothingBacks) {
  ScratchFolder const folder("bounds_journal");
  JournalEntry entry;
  entry.round = entry.bytes = 1;
  entry.cells = {{0, 1}};
  entry.digests = entry.files = {{1, 1}};
  write_journal(folder.path() / "journal", entry);
  std::string whole = read_text_file(folder.path() / "journal", 1 << 20);
  whole += repeated(journal_block(entry), 50'000);
  write_text_file(folder.path() / "journal", whole);
  std::optional<Journal> journal;
  EXPECT_EQ(within_bounds("50k entries of a journal", whole.size(),
                          [&] { journal = read_journal(folder.path() / "journal"); }),
            "");
  ASSERT_TRUE(journal);
  EXPECT_EQ(journal->entries.size(), 50'001U);
  std::string const forged(100, '\xff');
  EXPECT_EQ(bounded("a block of counts", forged,
                    [](std::string const& bytes) { EXPECT_FALSE(parse_journal_block(bytes)); }),
            "");
}

}  // namespace
}  // namespace reshard
