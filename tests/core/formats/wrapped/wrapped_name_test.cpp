#include "core/formats/wrapped/wrapped_name.hpp"

#include <gtest/gtest.h>

namespace reshard {
namespace {

using Kind = WrappedName::Kind;

struct Case {
  char const* name;
  Kind kind;
  char const* base;
  char const* peft;
  char const* adapter;
};

TEST(WrappedName, SaysWhatPeftMakesOfAModule) {
  for (Case const& one : {
           Case{"base_model.model.a.norm.weight", Kind::plain, "a.norm.weight", "", ""},
           {"base_model.model.a.q.base_layer.weight", Kind::base, "a.q.weight", "", ""},
           {"base_model.model.a.q.lora_A.default.weight", Kind::matrix, "",
            "base_model.model.a.q.lora_A.weight", "default"},
           {"a.q.lora_B.x.weight", Kind::matrix, "", "base_model.model.a.q.lora_B.weight", "x"},
           {"base_model.model.e.base_layer.lora_A.default.weight", Kind::matrix, "",
            "base_model.model.e.base_layer.lora_A.weight", "default"},
           {"base_model.model.a.q.lora_B.default.bias", Kind::further, "",
            "base_model.model.a.q.lora_B.bias", "default"},
           {"base_model.model.a.q.lora_magnitude_vector.default.weight", Kind::magnitude, "",
            "base_model.model.a.q.lora_magnitude_vector", "default"},
           {"base_model.model.t.lora_embedding_A.default", Kind::further, "",
            "base_model.model.t.lora_embedding_A", "default"},
           {"base_model.model.head.original_module.weight", Kind::original, "head.weight", "", ""},
           {"base_model.model.head.modules_to_save.default.weight", Kind::trained, "head.weight",
            "base_model.model.head.weight", "default"},
           {"base_model.model.t.token_adapter.base_layer.weight", Kind::base, "t.weight", "", ""},
           {"base_model.model.t.token_adapter.trainable_tokens_delta.default", Kind::further, "",
            "base_model.model.t.token_adapter.trainable_tokens_delta", "default"},
           {"base_model.model.a.q.lora_new.default.weight", Kind::unknown, "", "", "default"},
       }) {
    WrappedName const found = parse_wrapped(one.name);
    EXPECT_EQ(found.kind, one.kind) << one.name;
    if (*one.base != '\0') {
      EXPECT_EQ(found.base, one.base);
    }
    if (*one.peft != '\0') {
      EXPECT_EQ(found.peft, one.peft);
    }
    EXPECT_EQ(found.adapter, one.adapter) << one.name;
  }
}

TEST(WrappedName, KeepsWhatStandsBefore) {
  WrappedName const found = parse_wrapped("app.model.base_model.model.a.q.base_layer.weight");
  EXPECT_TRUE(found.rooted);
  EXPECT_EQ(found.before, "app.model.");
  EXPECT_EQ(found.base, "a.q.weight");
  EXPECT_EQ(found.wrapped, "a.q");
  EXPECT_FALSE(parse_wrapped("my_base_model.model.a.weight").rooted);
  EXPECT_EQ(parse_wrapped("my_base_model.model.a.weight").base, "my_base_model.model.a.weight");
}

}  // namespace
}  // namespace reshard
