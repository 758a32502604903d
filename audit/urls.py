from django.urls import path

from audit import views

app_name = "audit"
urlpatterns = [
    path("", views.entry_list, name="list"),
    path("<int:sequence>/", views.entry_detail, name="detail"),
]
